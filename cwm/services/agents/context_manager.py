"""The ContextManager: serves one agent session, for as long as that lasts."""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from cwm.domain.errors import AgentSessionNotFoundError, CwmError
from cwm.domain.principal import Principal
from cwm.ports.agent_sessions import AgentSessions


def state_key(principal: Principal, agent_session: str | None) -> str:
    """Where the store keeps what belongs to it: by id, or by principal for one that has no id."""
    if agent_session is not None:
        return agent_session
    name = f"{principal.tenant}\0{principal.subject}"
    return f"principal-{hashlib.sha256(name.encode()).hexdigest()[:32]}"


class AgentPart(ABC):
    """What another room attaches to an agent session; it ends with it."""

    __slots__ = ("agent",)

    def __init__(self, agent: ContextManager) -> None:
        self.agent = agent

    @property
    @abstractmethod
    def listening(self) -> bool:
        """Whether it waits for news, so that its agent session is not idle although it serves nothing."""

    @abstractmethod
    def stored(self) -> Mapping[str, str]:
        """What the store must have of it, by name, for another replica to go on."""

    @abstractmethod
    def close(self, *, end: bool) -> Awaitable[object]:
        """Give up at once what it has open; the result is awaited until that is closed. It may be used again after."""


P = TypeVar("P", bound=AgentPart)


class ContextManager:
    """Whom it serves, whether it is in use, and what other rooms attach to it.

    Any replica may serve the same agent session: what the next one needs to go on is in the store. Closing
    keeps that; ending the agent session ends it. Closed while it serves, it serves on and closes again what that
    needed; ended, it serves nobody any more.
    """

    __slots__ = (
        "_busy",
        "_closed",
        "_ended",
        "_parts",
        "_used",
        "agent_session",
        "key",
        "last_used",
        "principal",
        "store",
    )

    def __init__(
        self,
        principal: Principal,
        agent_session: str | None,
        store: AgentSessions,
        used: Callable[[ContextManager], None] = lambda _: None,
    ) -> None:
        """``used`` is called whenever it has served."""
        self.principal = principal
        self.agent_session = agent_session
        self.key = state_key(principal, agent_session)
        self.last_used = 0.0
        self.store = store
        self._used = used
        self._busy = 0
        self._closed = self._ended = False
        # Attached when needed: thousands of idle agent sessions need none.
        self._parts: tuple[AgentPart, ...] = ()

    @property
    def idle(self) -> bool:
        return self._busy == 0 and not self.listening

    @property
    def listening(self) -> bool:
        """It is not busy, and yet waits for news of some resource."""
        return self._busy == 0 and any(part.listening for part in self._parts)

    def part(self, kind: type[P]) -> P:
        """Its part of this kind, attached at the first call."""
        for part in self._parts:
            if isinstance(part, kind):
                return part
        part = kind(self)
        self._parts += (part,)
        return part

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[ContextManager]:
        self._busy += 1
        try:
            yield self
        finally:
            self._busy -= 1
            self._used(self)
            if self._closed and not self._busy:
                await self.close(end=False)

    async def keep(self) -> None:
        """Use what the store keeps by principal, and keep again what it lost; ids are used by whoever finds out whose they are."""
        if self.agent_session is not None:
            return
        ours = {name: value for part in self._parts for name, value in part.stored().items()}
        if ours:
            # Without the store it is served all the same.
            with suppress(CwmError):
                stored = await self.store.recall(self.key)
                for name in ours.keys() - stored.keys():
                    await self.store.remember(self.key, name, ours[name], anew=True, leaves=True)

    async def close(self, *, end: bool) -> None:
        self._closed = True
        self._ended = self._ended or end
        closing = [part.close(end=self._ended) for part in self._parts]
        # Whoever waits for it may be cancelled; the parts are closed all the same.
        await asyncio.shield(asyncio.gather(*closing))

    def refuse_if_ended(self) -> None:
        """Raises AgentSessionNotFoundError."""
        if self._ended:
            raise AgentSessionNotFoundError("The agent session has ended.")
