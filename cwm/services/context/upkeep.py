"""Upkeep of shared context: deletes contents without a holder and private scopes of ended agent sessions."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import timedelta
from typing import Final

from cwm.background import BackgroundTasks
from cwm.domain.changes import Change, ChangeKind
from cwm.domain.errors import CwmError
from cwm.domain.shared_context import SESSION, ContextScope
from cwm.ports.agent_sessions import AgentSessions
from cwm.ports.changes import Changes
from cwm.services.context.shared_context import SharedContext

_SWEEP_SECONDS: Final = 60.0
# The private scope of a principal without an agent session never ends.
_PRINCIPAL_PREFIX: Final = f"{SESSION}:principal-"

_log = logging.getLogger("cwm.context")


class ContextUpkeep:
    """Deletes the private scope of an agent session when it ends; the sweep finds those whose end was not notified."""

    def __init__(
        self, context: SharedContext, sessions: AgentSessions, changes: Changes, idle_seconds: float
    ) -> None:
        self._context = context
        self._sessions = sessions
        self._idle = timedelta(seconds=idle_seconds)
        self._deletions = BackgroundTasks()
        self.close = changes.subscribe(self._hear)

    async def run(self) -> None:
        """Sweep every 60 s. Runs until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                await self.sweep()
            except CwmError as error:
                _log.warning("shared context was not swept: %s", error.code)

    async def sweep(self) -> int:
        """Delete what has ended; returns how many contents and private scopes were deleted."""
        deleted = await self._context.contents.store.vacuum_of_every_tenant()
        cutoff = self._context.clock.now() - self._idle
        for scope in await self._context.index.private_scopes_of_every_tenant(cutoff):
            if scope.key.startswith(_PRINCIPAL_PREFIX):
                continue
            if not await self._sessions.alive(scope.key.removeprefix(f"{SESSION}:")):
                await self._context.forget(scope)
                deleted += 1
        return deleted

    async def settle(self) -> None:
        """Wait until the deletions under way are done."""
        await self._deletions.settled()

    def _hear(self, change: Change) -> None:
        if change.kind is ChangeKind.ENDED and change.agent_session and change.tenant:
            self._deletions.start(
                self._forget(ContextScope(change.tenant, SESSION, f"{SESSION}:{change.agent_session}"))
            )

    async def _forget(self, scope: ContextScope) -> None:
        # The next sweep tries again.
        with suppress(CwmError):
            await self._context.forget(scope)
