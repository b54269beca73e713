"""The sessions that a principal used within the last hour."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from cwm.domain.principal import Principal
from cwm.domain.session import LIVE, Session, SessionQuery
from cwm.ports.registry import Registry
from cwm.services.turns.finding.named_session import is_own

_LATELY: Final = timedelta(hours=1)
_LISTED: Final = 200


async def used_lately(registry: Registry, principal: Principal, now: datetime) -> list[Session]:
    """The principal's own live sessions of the last hour, the last used first."""
    query = SessionQuery(
        LIVE,
        limit=_LISTED,
        circles=principal.circles,
        owner=principal.subject,
        used_since=now - _LATELY,
        unlisted=True,
    )
    own = [each for each in await registry.sessions(principal.tenant, query) if is_own(principal, each)]
    return sorted(own, key=lambda session: session.updated_at, reverse=True)
