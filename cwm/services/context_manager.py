"""The ContextManager: serves one agent session, for as long as that lasts."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from cwm.domain.principal import Principal
from cwm.domain.upstream import Kind
from cwm.ports.agent_sessions import AgentSessions
from cwm.ports.upstream import Heard, UpstreamSession
from cwm.services.upstream_link import ALL_KINDS, Catalogue, Link, Offers, kinds_of


def state_key(principal: Principal, agent_session: str | None) -> str:
    """Where the store keeps what belongs to it: by id, or by principal for one that has no id."""
    if agent_session is not None:
        return agent_session
    told = f"{principal.tenant}\0{principal.subject}"
    return f"principal-{hashlib.sha256(told.encode()).hexdigest()[:32]}"


@dataclass(slots=True)
class _Upstream:
    """One agent session's own session with one upstream."""

    session: UpstreamSession
    catalogue: Catalogue
    stale: set[Kind] = field(default_factory=lambda: set(ALL_KINDS))


class ContextManager:
    """Whom it serves, and its own sessions with stateful upstreams, opened on first use.

    Any replica may serve the same agent session: what the next one needs to go on with an upstream's session
    is in the store. Closing keeps that session; ending the agent session ends it.
    """

    __slots__ = ("_busy", "_held", "_opening", "_store", "agent_session", "key", "last_used", "principal")

    def __init__(
        self, principal: Principal, agent_session: str | None, store: AgentSessions, now: float
    ) -> None:
        self.principal = principal
        self.agent_session = agent_session
        self.key = state_key(principal, agent_session)
        self.last_used = now
        self._store = store
        self._busy = 0
        self._held: dict[Link, _Upstream] = {}
        self._opening: asyncio.Lock | None = None

    @property
    def idle(self) -> bool:
        return self._busy == 0

    @contextmanager
    def serving(self) -> Iterator[ContextManager]:
        self._busy += 1
        try:
            yield self
        finally:
            self._busy -= 1

    async def session(self, link: Link, authorization: str | None, heard: Heard) -> UpstreamSession:
        """The agent session's own session with the upstream. Raises UpstreamAwayError."""
        return (await self._upstream(link, authorization, heard)).session

    async def offers(self, link: Link, kind: Kind, authorization: str | None, heard: Heard) -> Offers:
        """What an upstream offers to this caller. Raises UpstreamError."""
        held = await self._upstream(link, authorization, heard)
        if kind in held.stale:
            asked = kinds_of(kind) if kind is not Kind.TEMPLATES else frozenset({kind})
            await held.catalogue.learn(held.session, asked)
            held.stale -= asked
        return held.catalogue.of(kind)

    def outdated(self, link: Link, heard: Kind) -> None:
        if (held := self._held.get(link)) is not None:
            held.stale |= kinds_of(heard)

    async def drop(self, link: Link, session: UpstreamSession) -> None:
        """Stop using a session that the upstream does not know any more."""
        held = self._held.get(link)
        if held is not None and held.session is session:
            del self._held[link]
            await self._store.forget(self.key, _stored_as(link))
            await session.close(end=False)

    async def release(self, link: Link) -> None:
        """The upstream is configured no more."""
        if (held := self._held.pop(link, None)) is not None:
            await self._store.forget(self.key, _stored_as(link))
            await held.session.close(end=True)

    async def close(self, *, end: bool) -> None:
        held, self._held = list(self._held.values()), {}
        await asyncio.gather(*(each.session.close(end=end or not _resumable(each)) for each in held))

    async def _upstream(self, link: Link, authorization: str | None, heard: Heard) -> _Upstream:
        # Made when needed: thousands of idle agent sessions need none.
        self._opening = self._opening or asyncio.Lock()
        async with self._opening:
            held = self._held.get(link)
            if held is not None and not held.session.is_open:
                await held.session.close(end=False)
                held = None
            if held is None:
                session = await self._open(link, authorization, heard)
                held = self._held[link] = _Upstream(session, Catalogue(link.spec))
        return held

    async def _open(self, link: Link, authorization: str | None, heard: Heard) -> UpstreamSession:
        name = _stored_as(link)
        resume = (await self._store.recall(self.key)).get(name)
        session = await link.connector.open(
            link.spec, authorization=authorization, resume=resume, heard=heard
        )
        ours = session.resume_with
        if resume is not None or ours is None:
            return session
        kept = await self._store.remember(self.key, name, ours)
        if kept == ours:
            return session
        # Another replica opened one for this agent session at the same moment: go on with that.
        await session.close(end=True)
        return await link.connector.open(link.spec, authorization=authorization, resume=kept, heard=heard)


def _stored_as(link: Link) -> str:
    return f"upstream:{link.spec.name}:{link.spec.url}"


def _resumable(held: _Upstream) -> bool:
    return held.session.is_open and held.session.resume_with is not None
