"""What ends by itself: contents that nobody holds any more, private scopes of agent sessions that ended."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import timedelta
from typing import Final

from cwm.background import BackgroundTasks
from cwm.domain.changes import Change, ChangeKind
from cwm.domain.errors import CwmError
from cwm.domain.shared_context import SESSION, Scope
from cwm.ports.agent_sessions import AgentSessions
from cwm.ports.changes import Changes
from cwm.services.context.shared_context import SharedContext

_SWEEP_SECONDS: Final = 60.0
# A principal without an agent session is there for ever.
_OF_A_PRINCIPAL: Final = f"{SESSION}:principal-"

_log = logging.getLogger("cwm.context")


class ContextUpkeep:
    """An agent session that ends takes its private scope along; one that ended unheard is found by looking."""

    def __init__(
        self, context: SharedContext, sessions: AgentSessions, changes: Changes, idle_seconds: float
    ) -> None:
        self._context = context
        self._sessions = sessions
        self._idle = timedelta(seconds=idle_seconds)
        self._forgetting = BackgroundTasks()
        self.close = changes.subscribe(self._hear)

    async def run(self) -> None:
        """Sweep every now and then, for ever."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                await self.sweep()
            except CwmError as away:
                _log.warning("shared context was not swept: %s", away.code)

    async def sweep(self) -> int:
        """How many contents and private scopes were forgotten."""
        gone = await self._context.contents.store.vacuum_of_every_tenant()
        before = self._context.clock.now() - self._idle
        for scope in await self._context.index.private_scopes_of_every_tenant(before):
            if scope.key.startswith(_OF_A_PRINCIPAL):
                continue
            if not await self._sessions.alive(scope.key.removeprefix(f"{SESSION}:")):
                await self._context.forget(scope)
                gone += 1
        return gone

    async def settle(self) -> None:
        """Wait until what is being forgotten is."""
        await self._forgetting.settled()

    def _hear(self, change: Change) -> None:
        if change.kind is ChangeKind.ENDED and change.agent_session and change.tenant:
            self._forgetting.start(
                self._forget(Scope(change.tenant, SESSION, f"{SESSION}:{change.agent_session}"))
            )

    async def _forget(self, scope: Scope) -> None:
        # The sweep comes back to it.
        with suppress(CwmError):
            await self._context.forget(scope)
