"""The agent sessions that this process serves: opened on first use, closed when idle, when ended, or at shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from cwm.background import BackgroundTasks
from cwm.domain.changes import Change, ChangeKind
from cwm.domain.errors import AgentSessionNotFoundError, CwmError, TooManyAgentSessionsError
from cwm.domain.principal import Principal
from cwm.ports.agent_sessions import AgentSessions
from cwm.ports.changes import Changes
from cwm.ports.clock import Clock
from cwm.services.agents.context_manager import ContextManager

_SWEEP_SECONDS: Final = 30.0

_Key = tuple[Principal, str | None]
Hook = Callable[[ContextManager], Awaitable[None]]
Farewell = Callable[[Mapping[str, str]], Awaitable[None]]

_log = logging.getLogger("cwm.agents")


@dataclass(slots=True, eq=False)
class Agents:
    """The ContextManagers of this process, by (principal, agent session).

    At ``limit`` the one that has been idle longest is closed first; if all are busy, CWM-3006. A closed agent session
    has not ended: the next request makes a new ContextManager, which continues from the store. ``foreign`` is called
    with every principal who names another principal's agent session.
    """

    store: AgentSessions
    changes: Changes
    clock: Clock
    ttl_seconds: float
    limit: int
    foreign: Callable[[Principal], Awaitable[None]] | None = None
    _managers: OrderedDict[_Key, ContextManager] = field(default_factory=OrderedDict)
    _starting: dict[_Key, asyncio.Task[None]] = field(default_factory=dict)
    _closing: BackgroundTasks = field(default_factory=BackgroundTasks)
    _on_start: list[Hook] = field(default_factory=list)
    _on_end: list[Hook] = field(default_factory=list)
    _on_farewell: list[Farewell] = field(default_factory=list)
    _unsubscribe: Callable[[], None] = field(init=False)

    def __post_init__(self) -> None:
        self._unsubscribe = self.changes.subscribe(self._hear)

    def __len__(self) -> int:
        return len(self._managers)

    def __iter__(self) -> Iterator[ContextManager]:
        return iter(list(self._managers.values()))

    def at_start(self, hook: Hook) -> None:
        """Register a hook that runs with every new ContextManager before it serves. If it raises, so does :meth:`get`."""
        self._on_start.append(hook)

    def at_end(self, hook: Hook) -> None:
        """Register a hook that runs with every ContextManager that stops serving in this process."""
        self._on_end.append(hook)

    def at_farewell(self, farewell: Farewell) -> None:
        """Register a callback for an agent session that ended but was not served here; called with its stored values."""
        self._on_farewell.append(farewell)

    async def get(self, principal: Principal, agent_session: str | None) -> ContextManager:
        """The ContextManager of an agent session; the caller has checked that it is this principal's. CWM-3006."""
        key = (principal, agent_session)
        manager = self._managers.get(key)
        if manager is None:
            self._make_room()
            manager = self._managers[key] = ContextManager(principal, agent_session, self.store, self._use)
            if self._on_start:
                self._starting[key] = asyncio.create_task(self._start(key, manager))
        self._use(manager)
        if (starting := self._starting.get(key)) is not None:
            await asyncio.shield(starting)
        await manager.keep()
        return manager

    def held(self, principal: Principal, agent_session: str | None) -> ContextManager | None:
        """The ContextManager if this process has one, else None."""
        return self._managers.get((principal, agent_session))

    async def listens(self, principal: Principal, agent_session: str | None) -> bool:
        """Count an open stream as use. False if its agent session does not exist any more. Raises StorageReadError."""
        if (manager := self.held(principal, agent_session)) is not None:
            self._use(manager)
            await manager.keep()
        return agent_session is None or await self.store.touch(agent_session, principal)

    async def begin(self, principal: Principal) -> str:
        """Start an agent session and return its handle, for a client whose protocol has no sessions."""
        return await self.store.begin(principal)

    async def known(self, principal: Principal, handle: str) -> str:
        """Check that ``handle`` is this principal's and return it. Raises AgentSessionNotFoundError."""
        if not await self.store.touch(handle, principal):
            error = AgentSessionNotFoundError("There is no such agent session; it may have expired.")
            if self.foreign is not None and await self.store.alive(handle):
                await self.foreign(principal)
                error.audited = True
            raise error
        return handle

    async def end(self, principal: Principal, handle: str) -> None:
        """End an agent session on every replica. Raises AgentSessionNotFoundError."""
        await self.known(principal, handle)
        await self.finish(principal, handle)

    async def finish(self, principal: Principal, agent_session: str) -> Mapping[str, str]:
        """:meth:`end` without the check whose it is; returns its stored values."""
        values = await self.store.recall(agent_session)
        is_local = (principal, agent_session) in self._managers
        ended = await self.store.end(agent_session)
        await self.changes.publish(
            Change(ChangeKind.ENDED, agent_session=agent_session, tenant=principal.tenant)
        )
        if ended and not is_local:
            # Its last replica may have closed it, or crashed, and left upstream sessions open for other replicas.
            self._say_farewell(values)
        return values

    async def sweep(self) -> None:
        """Keep busy agent sessions alive and close those idle for the TTL, at least every 30 s. Runs until cancelled."""
        while True:
            await asyncio.sleep(min(_SWEEP_SECONDS, self.ttl_seconds / 2))
            self.keep_busy()
            await self.see_off()
            self.close_idle()

    def keep_busy(self) -> None:
        """Count a running call as use, so that one longer than the TTL does not lose its agent session."""
        for manager in self:
            if not manager.idle and not manager.listening:
                self._closing.start(self._keep(manager))

    async def see_off(self) -> None:
        """Close what expired agent sessions left open at upstreams and no replica closes, for example after a crash."""
        with suppress(CwmError):
            abandoned = await self.store.abandoned()
            # Those served here are handled when they are closed.
            local_keys = {manager.key for manager in self}
            for key, values in abandoned:
                if key not in local_keys:
                    self._say_farewell(values)

    def close_idle(self) -> None:
        """Close agent sessions that have been idle for the TTL."""
        cutoff = self.clock.monotonic() - self.ttl_seconds
        for key, manager in list(self._managers.items()):
            if manager.last_used > cutoff:
                return
            if manager.idle:
                del self._managers[key]
                self._close_soon(manager, end=None)
            elif manager.listening:
                self._closing.start(self._close_if_ended(key, manager))

    async def aclose(self) -> None:
        self._unsubscribe()
        for starting in list(self._starting.values()):
            starting.cancel()
        managers, self._managers = list(self._managers.values()), OrderedDict()
        for manager in managers:
            self._close_soon(manager, end=not self.store.outlives_us)
        await self.settled()

    async def settled(self) -> None:
        """Wait for the background work: closing agent sessions and keeping them alive."""
        await self._closing.settled()

    def _use(self, manager: ContextManager) -> None:
        """Record a use; the dictionary is ordered by last use."""
        manager.last_used = self.clock.monotonic()
        key = (manager.principal, manager.agent_session)
        if self._managers.get(key) is manager:
            self._managers.move_to_end(key)

    async def _start(self, key: _Key, manager: ContextManager) -> None:
        try:
            async with manager.serving():
                for hook in self._on_start:
                    await hook(manager)
        except BaseException:
            if self._managers.get(key) is manager:
                del self._managers[key]
            raise
        finally:
            del self._starting[key]

    def _make_room(self) -> None:
        if len(self._managers) < self.limit:
            return
        for key, manager in self._managers.items():
            if manager.idle:
                del self._managers[key]
                self._close_soon(manager, end=False)
                return
        raise TooManyAgentSessionsError(
            f"All {self.limit} agent sessions of this gateway are busy.", limit=self.limit
        )

    def _hear(self, change: Change) -> None:
        if change.kind is not ChangeKind.ENDED:
            return
        for key, manager in list(self._managers.items()):
            if manager.agent_session == change.agent_session:
                del self._managers[key]
                self._close_soon(manager, end=True)

    async def _close_if_ended(self, key: _Key, manager: ContextManager) -> None:
        """Close a listening agent session if it has expired: an end by TTL is not notified."""
        try:
            ended = not await self.store.alive(manager.key)
        except CwmError:
            return
        if ended and self._managers.get(key) is manager and manager.listening:
            del self._managers[key]
            await self._close(manager, end=True)

    def _say_farewell(self, values: Mapping[str, str]) -> None:
        for farewell in self._on_farewell:
            self._closing.start(self._run_farewell(farewell, values))

    async def _keep(self, manager: ContextManager) -> None:
        # The agent session is served even if the store is unreachable.
        with suppress(CwmError):
            await self.store.recall(manager.key)

    async def _run_farewell(self, farewell: Farewell, values: Mapping[str, str]) -> None:
        try:
            await farewell(values)
        except Exception:  # noqa: BLE001 - logged; it has ended all the same
            _log.exception("the upstream sessions of an ended agent session could not be closed")

    def _close_soon(self, manager: ContextManager, *, end: bool | None) -> None:
        self._closing.start(self._close(manager, end=end))

    async def _close(self, manager: ContextManager, *, end: bool | None) -> None:
        """Close; ``end`` None means: end it if the store has no such agent session any more."""
        try:
            for hook in self._on_end:
                await hook(manager)
            await manager.close(end=not await self.store.alive(manager.key) if end is None else end)
        except Exception:  # noqa: BLE001 - logged; the others are closed all the same
            _log.exception("an agent session could not be closed")
