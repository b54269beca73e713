"""The ContextManager: serves one agent session, for as long as that lasts."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from cwm.domain.errors import AgentSessionNotFoundError, CwmError
from cwm.domain.principal import Principal
from cwm.domain.upstream import Kind
from cwm.ports.agent_sessions import AgentSessions
from cwm.ports.upstream import Heard, UpstreamExpiredError, UpstreamSession
from cwm.services.upstreams.attempts import Attempts
from cwm.services.upstreams.link import ALL_KINDS, Catalogue, Link, Offers, kinds_of
from cwm.services.upstreams.watches import Watches


def state_key(principal: Principal, agent_session: str | None) -> str:
    """Where the store keeps what belongs to it: by id, or by principal for one that has no id."""
    if agent_session is not None:
        return agent_session
    told = f"{principal.tenant}\0{principal.subject}"
    return f"principal-{hashlib.sha256(told.encode()).hexdigest()[:32]}"


@dataclass(slots=True)
class _Upstream:
    """One agent session's own session with one upstream; ``stored`` is what the store keeps of it."""

    session: UpstreamSession
    catalogue: Catalogue
    stored: str | None
    stale: set[Kind] = field(default_factory=lambda: set(ALL_KINDS))
    learning: asyncio.Lock = field(default_factory=asyncio.Lock)


class ContextManager:
    """Whom it serves, and its own sessions with stateful upstreams, opened on first use.

    Any replica may serve the same agent session: what the next one needs to go on with an upstream's session
    is in the store. Closing keeps that session; ending the agent session ends it. Closed while it serves, it
    serves on and closes again what that needed; ended, it serves nobody any more.
    """

    __slots__ = (
        "_attempts",
        "_busy",
        "_closed",
        "_ended",
        "_gone",
        "_held",
        "_opening",
        "_store",
        "_used",
        "_watches",
        "agent_session",
        "key",
        "last_used",
        "principal",
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
        self._store = store
        self._used = used
        self._busy = 0
        self._closed = self._ended = False
        # Made when needed: thousands of idle agent sessions need none.
        self._held: dict[Link, _Upstream] = {}
        self._opening: dict[Link, asyncio.Lock] = {}
        self._gone: dict[Link, str] = {}
        self._watches: dict[Link, Watches] = {}
        self._attempts: dict[Link, Attempts] = {}

    @property
    def idle(self) -> bool:
        return self._busy == 0 and not self.listening

    @property
    def listening(self) -> bool:
        """It is not busy, and yet waits for news of some resource."""
        return self._busy == 0 and any(self._watches.values())

    def watches(self, link: Link) -> Watches:
        """What it is to hear of, in its own session with the upstream or in the one that all share."""
        return self._watches.setdefault(link, Watches())

    def listens_to(self, link: Link) -> bool:
        return bool(self._watches.get(link))

    def has_session(self, link: Link) -> bool:
        return link in self._held

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
        ours = {stored_as(link): held.stored for link, held in self._held.items() if held.stored is not None}
        if ours:
            # Without the store it is served all the same.
            with suppress(CwmError):
                kept = await self._store.recall(self.key)
                for name in ours.keys() - kept.keys():
                    await self._store.remember(self.key, name, ours[name], anew=True, leaves=True)

    async def session(self, link: Link, authorization: str | None, heard: Heard) -> UpstreamSession:
        """The agent session's own session with the upstream. Raises UpstreamAwayError."""
        return (await self._upstream(link, authorization, heard)).session

    def known(self, link: Link, kind: Kind) -> Offers | None:
        """What :meth:`offers` gives, where nothing need be asked for that."""
        held = self._held.get(link)
        fresh = held is not None and held.session.is_open and kind not in held.stale
        return held.catalogue.of(kind) if held is not None and fresh else None

    def attempts(self, link: Link, back: Callable[[Kind], None]) -> Attempts:
        """What is under way to learn what the upstream offers, and what became of it before."""
        return self._attempts.setdefault(link, Attempts(link, back))

    async def offers(self, link: Link, kind: Kind, authorization: str | None, heard: Heard) -> Offers:
        """What an upstream offers to this caller. Raises UpstreamError."""
        held = await self._upstream(link, authorization, heard)
        async with held.learning:
            return await self._learned(link, kind, held)

    async def _learned(self, link: Link, kind: Kind, held: _Upstream) -> Offers:
        if kind in held.stale:
            asked = kinds_of(kind) if kind is not Kind.TEMPLATES else frozenset({kind})
            # What is heard while it is looked up makes it stale again.
            held.stale -= asked
            try:
                await held.catalogue.learn(held.session, asked)
            except BaseException as failed:
                held.stale |= asked
                if isinstance(failed, UpstreamExpiredError) or not held.session.is_open:
                    self.drop(link, held.session)
                raise
        return held.catalogue.of(kind)

    def outdated(self, link: Link, heard: Kind) -> None:
        if (held := self._held.get(link)) is not None:
            held.stale |= kinds_of(heard)

    def drop(self, link: Link, session: UpstreamSession) -> None:
        """Stop using a session that the upstream does not know any more."""
        held = self._held.get(link)
        if held is not None and held.session is session:
            del self._held[link]
            if held.stored is not None:
                self._gone[link] = held.stored
            session.retire(end=False)

    def unlisten(self, link: Link) -> list[str]:
        """What it listened to there, own URIs; it does so no more."""
        return watches.uris() if (watches := self._watches.pop(link, None)) is not None else []

    def succeed(self, old: Link, new: Link) -> None:
        """``new`` is the same upstream configured otherwise: go on there, in another session."""
        held = self._held.get(old)
        if held is not None and held.stored is not None and stored_as(old) == stored_as(new):
            # What the store keeps is the new one's to replace, and the old one's no more.
            self._gone[old] = self._gone[new] = held.stored
            held.stored = None

    async def release(self, link: Link) -> None:
        """The upstream is configured no more."""
        self._opening.pop(link, None)
        self._gone.pop(link, None)
        self._watches.pop(link, None)
        if (attempts := self._attempts.pop(link, None)) is not None:
            await attempts.stop()
        if (held := self._held.pop(link, None)) is not None:
            await held.session.close(end=True)
            if held.stored is not None:
                # Else it expires there with the agent session; whoever goes on with it before opens another.
                with suppress(CwmError):
                    await self._store.forget(self.key, stored_as(link))

    async def close(self, *, end: bool) -> None:
        self._closed = True
        self._ended = self._ended or end
        self._watches.clear()
        held, self._held = list(self._held.values()), {}
        closing = [each.session.close(end=self._ended or not _resumable(each)) for each in held]
        stopping = [each.stop() for each in self._attempts.values()]
        # Whoever waits for it may be cancelled; the sessions are closed all the same.
        await asyncio.shield(asyncio.gather(*closing, *stopping))

    async def _upstream(self, link: Link, authorization: str | None, heard: Heard) -> _Upstream:
        async with self._opening.setdefault(link, asyncio.Lock()):
            self.refuse_if_ended()
            held = self._held.get(link)
            if held is not None and not held.session.is_open:
                del self._held[link]
                await held.session.close(end=False)
                held = None
            if held is None:
                held = await self._open(link, authorization, heard)
                try:
                    self.refuse_if_ended()
                except AgentSessionNotFoundError:
                    await held.session.close(end=True)
                    raise
                self._held[link] = held
                if (watches := self._watches.get(link)) is not None:
                    await watches.renew(held.session)
        return held

    def refuse_if_ended(self) -> None:
        """Raises AgentSessionNotFoundError."""
        if self._ended:
            raise AgentSessionNotFoundError("The agent session has ended.")

    async def _open(self, link: Link, authorization: str | None, heard: Heard) -> _Upstream:
        name, gone = stored_as(link), self._gone.get(link)
        kept = (await self._store.recall(self.key)).get(name)
        if kept is None or kept == gone:
            session = await link.connector.open(link.spec, authorization=authorization, heard=heard)
            ours = session.resume_with
            if ours is None:
                return _Upstream(session, Catalogue(link.spec), None)
            try:
                anew = self.agent_session is None
                kept = await self._store.remember(
                    self.key, name, ours, instead_of=gone, anew=anew, leaves=True
                )
            except BaseException:
                await session.close(end=True)
                raise
            self._gone.pop(link, None)
            if kept is None:
                # Expired meanwhile: nobody else goes on with it.
                return _Upstream(session, Catalogue(link.spec), None)
            if kept == ours:
                return _Upstream(session, Catalogue(link.spec), ours)
            # Another replica opened one for this agent session at the same moment: go on with that.
            await session.close(end=True)
        session = await link.connector.open(link.spec, authorization=authorization, resume=kept, heard=heard)
        return _Upstream(session, Catalogue(link.spec), kept)


def stored_as(link: Link) -> str:
    """The name by which the session with an upstream is kept for other replicas."""
    return f"upstream:{link.spec.name}:{link.spec.url}"


def _resumable(held: _Upstream) -> bool:
    return held.session.is_open and held.stored is not None
