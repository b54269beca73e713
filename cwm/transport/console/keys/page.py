"""The page of keys and limits: what opens this gateway for machines, and what of its limits is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cwm.domain.access import AccessScope, spelled
from cwm.domain.api_key import ApiKey
from cwm.domain.errors import InvalidParameterError
from cwm.transport.console.actions.keys import KEYS, NEW, state_of
from cwm.transport.console.actions.two_steps import links
from cwm.transport.console.keys.rows import rows
from cwm.transport.console.keys.tools import tool_rows
from cwm.transport.console.pages import Page, link
from cwm.transport.console.views import Asked

_SHOWN: Final = 50


async def keys(asked: Asked) -> Page:
    """For who has the scope admin a page of the tenant's keys; for everybody the limits."""
    services, principal = asked.services, asked.principal
    is_admin, is_accepted = AccessScope.ADMIN in principal.scopes, services.keys.accepted
    listed = await services.keys.listed(principal) if is_admin and is_accepted else []
    first = _after(listed, asked.text("after"))
    shown, now = listed[first : first + _SHOWN], services.journal.clock.now()
    return Page(
        "keys_and_limits.html",
        {
            "is_admin": is_admin,
            "is_accepted": is_accepted,
            "keys": [(key, spelled(key.scopes), sorted(key.workspaces), state_of(key, now)) for key in shown],
            "actions": {
                key.key_id: links(KEYS, principal, link("keys", key.key_id), state_of(key, now))
                for key in shown
            },
            "new": links(NEW, principal, link("keys")),
            "count": len(listed),
            "is_first": not first,
            "next_after": shown[-1].key_id if len(listed) > first + _SHOWN else None,
            "rows": rows(await services.usage(principal)),
            "tools": tool_rows(services.delivery.budgets.policies, principal),
        },
    )


def _after(listed: Sequence[ApiKey], key_id: str) -> int:
    """The index after the key with this id; 0 without one. CWM-1003 if there is none."""
    if not key_id:
        return 0
    index = next((index for index, key in enumerate(listed) if key.key_id == key_id), None)
    if index is None:
        raise InvalidParameterError("There is no such key.", field="after")
    return index + 1
