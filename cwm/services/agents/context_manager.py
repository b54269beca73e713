"""The ContextManager: serves one agent session in this process."""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

from cwm.domain.errors import AgentSessionNotFoundError, CwmError
from cwm.domain.principal import Principal
from cwm.ports.agent_sessions import AgentSessions


def state_key(principal: Principal, agent_session: str | None) -> str:
    """The agent session's key in the store: its id, or a hash of the principal if it has no id."""
    if agent_session is not None:
        return agent_session
    name = f"{principal.tenant}\0{principal.subject}"
    return f"principal-{hashlib.sha256(name.encode()).hexdigest()[:32]}"


class AgentPart(ABC):
    """State that another service attaches to an agent session. It ends with the agent session."""

    __slots__ = ("agent",)

    def __init__(self, agent: ContextManager) -> None:
        self.agent = agent

    @property
    @abstractmethod
    def listening(self) -> bool:
        """Whether it waits for notifications, so that its agent session is not idle even without requests."""

    @abstractmethod
    def stored(self) -> Mapping[str, str]:
        """The values that the store must have for another replica to continue, by name."""

    @abstractmethod
    def close(self, *, end: bool) -> Awaitable[object]:
        """Detach all that is open at once; the result waits until it is closed. The part may be used again after."""


P = TypeVar("P", bound=AgentPart)


@dataclass(slots=True, eq=False)
class ContextManager:
    """One agent session: its principal, whether it is in use, and the parts that other services attach.

    Any replica may serve the same agent session: the store has what the next one needs to continue. Closing keeps
    that, ending deletes it. If it is closed during a request, the request completes and what it opened is closed after.
    Once ended, it serves no further requests.
    """

    principal: Principal
    agent_session: str | None
    store: AgentSessions
    on_use: Callable[[ContextManager], None] = lambda _: None
    """Called after each request."""
    key: str = field(init=False)
    last_used: float = 0.0
    _busy: int = 0
    _closed: bool = False
    _ended: bool = False
    # Attached on first use: most of thousands of idle agent sessions need none.
    _parts: tuple[AgentPart, ...] = ()

    def __post_init__(self) -> None:
        self.key = state_key(self.principal, self.agent_session)

    @property
    def idle(self) -> bool:
        """Neither serving a request nor listening."""
        return self._busy == 0 and not self.listening

    @property
    def listening(self) -> bool:
        """Serving no request, but waiting for notifications."""
        return self._busy == 0 and any(part.listening for part in self._parts)

    def part(self, kind: type[P]) -> P:
        """The part of this type, attached at the first call."""
        for part in self._parts:
            if isinstance(part, kind):
                return part
        part = kind(self)
        self._parts += (part,)
        return part

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[ContextManager]:
        """Keep the agent session busy during the body."""
        self._busy += 1
        try:
            yield self
        finally:
            self._busy -= 1
            self.on_use(self)
            if self._closed and not self._busy:
                await self.close(end=False)

    async def keep(self) -> None:
        """Without an id: renew the values in the store, and store lost ones again. Ids are renewed when their owner is checked."""
        if self.agent_session is not None:
            return
        values = {name: value for part in self._parts for name, value in part.stored().items()}
        if values:
            # The agent session is served even if the store is unreachable.
            with suppress(CwmError):
                stored = await self.store.recall(self.key)
                for name in values.keys() - stored.keys():
                    await self.store.remember(self.key, name, values[name], anew=True, leaves=True)

    async def close(self, *, end: bool) -> None:
        """Close all parts; with ``end`` also end the agent session."""
        self._closed = True
        self._ended = self._ended or end
        closing = [part.close(end=self._ended) for part in self._parts]
        # The parts are closed even if the caller is cancelled.
        await asyncio.shield(asyncio.gather(*closing))

    def refuse_if_ended(self) -> None:
        """Raises AgentSessionNotFoundError."""
        if self._ended:
            raise AgentSessionNotFoundError("The agent session has ended.")
