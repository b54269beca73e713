"""Share: say who may see a session or window."""

from __future__ import annotations

from dataclasses import dataclass

from cwm.domain.errors import SecurityError
from cwm.domain.names import require_session_id, require_window_name
from cwm.domain.principal import Principal
from cwm.domain.visibility import Owned, Right, circle_of
from cwm.ports.registry import Registry
from cwm.services.access.sight import session_of, window_of
from cwm.services.audit.journal import Journal


@dataclass(frozen=True, slots=True)
class Share:
    registry: Registry
    journal: Journal

    async def session(self, principal: Principal, session_id: str, visibility: str) -> None:
        """Its automatic windows go with it. CWM-1001, CWM-1003, CWM-2001; CWM-9002 for others than its owner."""
        require_session_id(session_id)
        circle = circle_of(visibility, principal)
        async with self.journal.entry(principal, "session_share", session_id=session_id) as details:
            session = await session_of(self.registry, principal, session_id, Right.RECORD)
            _require_owner(principal, session)
            details.update(before=session.circle, after=circle)
            await self.registry.share_session(session, circle)
            for window in await self.registry.automatic_windows(session.tenant, session.id):
                if window.owner == session.owner:
                    await self.registry.share_window(window, circle, self.journal.clock.now())

    async def window(self, principal: Principal, window_name: str, visibility: str) -> None:
        """CWM-1002, CWM-1003, CWM-2002; CWM-9002 for others than its owner."""
        require_window_name(window_name)
        circle = circle_of(visibility, principal)
        async with self.journal.entry(principal, "window_share", window_name=window_name) as details:
            window = await window_of(self.registry, principal, window_name, Right.RECORD)
            _require_owner(principal, window)
            details.update(before=window.circle, after=circle)
            await self.registry.share_window(window, circle, self.journal.clock.now())


def _require_owner(principal: Principal, owned: Owned) -> None:
    if owned.owner != principal.subject:
        raise SecurityError("Only its owner says who may see it.", reason="not_owner")
