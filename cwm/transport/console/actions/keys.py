"""What can be done with API keys: make one, which is shown once, and revoke one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from cwm.domain.access import AccessScope, granted, spelled
from cwm.domain.api_key import ApiKey
from cwm.domain.errors import InvalidParameterError
from cwm.transport.console.access.form import FIELD, Form
from cwm.transport.console.actions.two_steps import ADMIN, Action, Field, Step
from cwm.transport.console.pages import Page, link
from cwm.transport.console.views import Asked

GOOD: Final = "good"
_SECTION: Final = "Keys and limits"
_OFF: Final = "This gateway takes no API keys: CWM_API_KEYS is false."
_DAYS: Final = (
    ("7", "a week"),
    ("30", "30 days"),
    ("90", "90 days"),
    ("365", "a year"),
    ("0", "until it is revoked"),
)
_ID_CHARS: Final = 16
WORDS: Final[Mapping[str, str]] = {
    AccessScope.WINDOWS_READ: "read windows, conversations and turns",
    AccessScope.WINDOWS_WRITE: "freeze, clone, rename and delete windows",
    AccessScope.SESSIONS_WRITE: "open, continue and delete conversations, through /v1 too",
    AccessScope.CONTEXT_READ: "read shared context",
    AccessScope.CONTEXT_WRITE: "change shared context",
    AccessScope.TOOLS_CALL: "use the tools of upstream servers",
    AccessScope.ADMIN: "all of these, and administer the tenant: keys, audit log, its engines; in the gateway's own tenant all engines, and upstreams",
    AccessScope.OTHERS_READ: "read what others of the tenant keep to themselves",
}


def state_of(key: ApiKey, now: datetime) -> str:
    """``good``, ``expired`` or ``revoked``."""
    if key.revoked_at is not None:
        return "revoked"
    return GOOD if key.is_good(now) else "expired"


async def _creating(asked: Asked) -> Step:
    principal = asked.principal
    if not asked.services.keys.accepted:
        return Step("Create an API key", [], (), link("keys"), blocked=_OFF)
    listed = await asked.services.keys.listed(principal)
    own = ", ".join(sorted(principal.workspaces))
    return Step(
        "Create an API key",
        [
            "Whoever has the key is the machine of that name, with the scopes that you choose. It is shown once, on the page that follows, and is stored as a digest only.",
            "All keys of one name are one principal, with the same sessions and windows: a second key of a name replaces a first one that you then revoke.",
        ],
        (*((key.key_id, key.revoked_at) for key in listed), *spelled(principal.scopes)),
        link("keys"),
        (
            Field("name", "Name of the machine", hint="letters, digits, '.', '_' and '-'", most=64),
            Field(
                "scope",
                "It may",
                kind="boxes",
                choices=[(scope, f"{scope}: {WORDS[scope]}") for scope in spelled(principal.scopes)],
            ),
            Field(
                "workspaces",
                "Workspaces that it is a member of",
                hint=f"with commas between; {f'yours: {own}' if own else 'you are in none'}",
                most=1024,
                required=False,
            ),
            Field("days", "It is good for", "90", "choice", choices=_DAYS),
        ),
    )


async def _create(asked: Asked, sent: Form) -> Page:
    days = sent.text("days")
    if days not in dict(_DAYS):
        raise InvalidParameterError("days is one of those on the page.", field="days")
    workspaces = frozenset(filter(None, map(str.strip, sent.text("workspaces").split(","))))
    key, text = await asked.services.keys.create(
        asked.principal,
        sent.text("name"),
        granted(sent.texts("scope")),
        timedelta(days=int(days)) if int(days) else None,
        workspaces,
        _id_of(sent),
    )
    return Page("key_made.html", {"key": key, "text": text, "scopes": spelled(key.scopes)})


def _id_of(sent: Form) -> str:
    """The same for the same form: of two that arrive at once, one makes a key."""
    material = "\0".join(("key", sent.text(FIELD), sent.text("revision")))
    return hashlib.sha256(material.encode()).hexdigest()[:_ID_CHARS]


async def _revoking(asked: Asked) -> Step:
    key, state = await _key(asked)
    title, seen = f"Revoke key {key.key_id} of {key.name}", (key.key_id, key.revoked_at)
    if key.revoked_at is not None:
        return Step(title, [], seen, link("keys"), blocked="It is revoked already.")
    facts = [
        "Every gateway on this database refuses it from now on; what it began is finished. That cannot be undone: make a new key instead.",
        f"What {key.name} made stays, and another key of that name opens it.",
    ]
    if asked.principal.client == f"key:{key.key_id}":
        facts.insert(0, "It is the key that you are signed in with.")
    if state != GOOD:
        facts.insert(0, "It has expired, so it is refused already.")
    return Step(title, facts, seen, link("keys"))


async def _revoke(asked: Asked, _: Form) -> str:
    await asked.services.keys.revoke(asked.principal, asked.part("key_id"))
    return link("keys", notice="key-revoked")


async def _key(asked: Asked) -> tuple[ApiKey, str]:
    """CWM-1003 for one that is not the tenant's."""
    now = asked.services.journal.clock.now()
    for key in await asked.services.keys.listed(asked.principal):
        if key.key_id == asked.part("key_id"):
            return key, state_of(key, now)
    raise InvalidParameterError("There is no such key.", field="key_id")


NEW: Final = {"create": Action("Create a key", _SECTION, ADMIN, _creating, _create)}
KEYS: Final = {
    "revoke": Action(
        "Revoke", _SECTION, ADMIN, _revoking, _revoke, is_destructive=True,
        fits=lambda state: state != "revoked",
    ),
}  # fmt: skip
