"""The links of an agent session to upstreams: its own upstream sessions and its resource subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from cwm.domain.errors import AgentSessionNotFoundError, CwmError
from cwm.domain.upstream import OfferKind
from cwm.ports.upstream import Heard, UpstreamExpiredError, UpstreamSession
from cwm.services.agents.context_manager import AgentPart, ContextManager
from cwm.services.upstreams.attempts import Attempts
from cwm.services.upstreams.link import ALL_KINDS, FRESH_SECONDS, Catalogue, Link, Offers, kinds_of
from cwm.services.upstreams.watches import Watches


@dataclass(slots=True)
class _OwnSession:
    """One agent session's own session with one upstream. ``stored``: the value in the store with which to resume it.

    ``outlasting``: tasks of the upstream go on in it when the agent session has ended, so it is left, not ended.
    """

    session: UpstreamSession
    catalogue: Catalogue
    stored: str | None
    outlasting: bool = False
    stale: set[OfferKind] = field(default_factory=lambda: set(ALL_KINDS))
    listed_at: dict[OfferKind, float] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class AgentLinks(AgentPart):
    """One agent session's own sessions with stateful upstreams, opened on first use.

    The store has what another replica needs to resume a session. Closing keeps the upstream session; ending the agent
    session ends it.
    """

    __slots__ = ("_attempts", "_opening", "_sessions", "_stale_values", "_watches")

    def __init__(self, agent: ContextManager) -> None:
        super().__init__(agent)
        self._sessions: dict[Link, _OwnSession] = {}
        self._opening: dict[Link, asyncio.Lock] = {}
        self._stale_values: dict[Link, str] = {}
        self._watches: dict[Link, Watches] = {}
        self._attempts: dict[Link, Attempts] = {}

    @property
    def listening(self) -> bool:
        return any(self._watches.values())

    def stored(self) -> Mapping[str, str]:
        return {stored_as(link): own.stored for link, own in self._sessions.items() if own.stored is not None}

    def watches(self, link: Link) -> Watches:
        """Its resource subscriptions at the upstream, in its own upstream session or the shared one."""
        return self._watches.setdefault(link, Watches())

    def listens_to(self, link: Link) -> bool:
        return bool(self._watches.get(link))

    def opened(self, link: Link) -> UpstreamSession | None:
        """Its own session with the upstream, or None."""
        return own.session if (own := self._sessions.get(link)) is not None else None

    async def session(self, link: Link, authorization: str | None, listener: Heard) -> UpstreamSession:
        """Its own session with the upstream, opened if needed. Raises UpstreamAwayError."""
        return (await self._upstream(link, authorization, listener)).session

    def outlasting(self, link: Link) -> str | None:
        """With what its own session can be resumed, which is left and not ended from now on; None if it cannot be."""
        own = self._sessions.get(link)
        if own is None or not own.session.is_open or (resume := own.session.resume_with) is None:
            return None
        own.outlasting = True
        return resume

    def is_in(self, link: Link, resume: str) -> bool:
        """Whether its own session is the one that ``resume`` stands for."""
        own = self._sessions.get(link)
        return own is not None and own.session.is_open and own.session.resume_with == resume

    def catalogue(self, link: Link) -> Catalogue | None:
        """What the upstream offers to this caller; None before the first list."""
        return own.catalogue if (own := self._sessions.get(link)) is not None else None

    def fresh_offers(self, link: Link, kind: OfferKind) -> Offers | None:
        """What :meth:`offers` returns, or None if that needs a request to the upstream."""
        own = self._sessions.get(link)
        fresh = own is not None and own.session.is_open and kind not in own.stale
        return own.catalogue.of(kind) if own is not None and fresh else None

    def age(self, link: Link, kind: OfferKind) -> None:
        """Mark an old list stale, if the upstream may have been restarted unnoticed."""
        own = self._sessions.get(link)
        if own is None or own.session.hears:
            return
        if link.clock.monotonic() - own.listed_at.get(kind, 0.0) >= FRESH_SECONDS:
            own.stale.add(kind)

    def attempts(self, link: Link, back: Callable[[OfferKind], None]) -> Attempts:
        """The attempts to list the upstream's offers, running and failed ones."""
        return self._attempts.setdefault(link, Attempts(link, back))

    async def offers(self, link: Link, kind: OfferKind, authorization: str | None, listener: Heard) -> Offers:
        """The upstream's offers of one kind to this caller. Raises UpstreamError."""
        own = await self._upstream(link, authorization, listener)
        async with own.lock:
            if kind in own.stale:
                kinds = kinds_of(kind)
                # A list_changed notification during the request marks them stale again.
                own.stale -= kinds
                own.listed_at |= dict.fromkeys(kinds, link.clock.monotonic())
                try:
                    await own.catalogue.learn(own.session, kinds)
                except BaseException as error:
                    own.stale |= kinds
                    if isinstance(error, UpstreamExpiredError) or not own.session.is_open:
                        self.drop(link, own.session)
                    raise
            return own.catalogue.of(kind)

    def outdated(self, link: Link, kind: OfferKind) -> None:
        """Mark a kind of offers stale; the next use lists it again."""
        if (own := self._sessions.get(link)) is not None:
            own.stale |= kinds_of(kind)

    def drop(self, link: Link, session: UpstreamSession) -> None:
        """Stop using a session that the upstream no longer knows."""
        own = self._sessions.get(link)
        if own is not None and own.session is session:
            del self._sessions[link]
            if own.stored is not None:
                self._stale_values[link] = own.stored
            session.retire(end=False)

    def unlisten(self, link: Link) -> list[str]:
        """Drop its subscriptions at the upstream and return their URIs, as the upstream names them."""
        return watches.uris() if (watches := self._watches.pop(link, None)) is not None else []

    def succeed(self, old: Link, new: Link) -> None:
        """``new`` replaces ``old`` after a configuration change: continue there in a new session."""
        own = self._sessions.get(old)
        if own is not None and own.stored is not None and stored_as(old) == stored_as(new):
            # The new link replaces the stored session; the old link must not delete it.
            self._stale_values[old] = self._stale_values[new] = own.stored
            own.stored = None

    async def release(self, link: Link) -> None:
        """Close its session with an upstream that was removed from the configuration."""
        self._opening.pop(link, None)
        self._stale_values.pop(link, None)
        self._watches.pop(link, None)
        if (attempts := self._attempts.pop(link, None)) is not None:
            await attempts.stop()
        if (own := self._sessions.pop(link, None)) is not None:
            await own.session.close(end=True)
            if own.stored is not None:
                # If this fails the value expires with the agent session; a replica that resumes it opens a new session.
                with suppress(CwmError):
                    await self.agent.store.forget(self.agent.key, stored_as(link))

    def close(self, *, end: bool) -> Awaitable[object]:
        self._watches.clear()
        sessions, self._sessions = list(self._sessions.values()), {}
        closing = [
            own.session.close(end=not own.outlasting and (end or not _resumable(own))) for own in sessions
        ]
        return asyncio.gather(*closing, *(each.stop() for each in self._attempts.values()))

    async def _upstream(self, link: Link, authorization: str | None, listener: Heard) -> _OwnSession:
        async with self._opening.setdefault(link, asyncio.Lock()):
            self.agent.refuse_if_ended()
            own = self._sessions.get(link)
            if own is not None and not own.session.is_open:
                del self._sessions[link]
                await own.session.close(end=False)
                own = None
            if own is None:
                own = await self._open(link, authorization, listener)
                try:
                    self.agent.refuse_if_ended()
                except AgentSessionNotFoundError:
                    await own.session.close(end=True)
                    raise
                self._sessions[link] = own
                if (watches := self._watches.get(link)) is not None:
                    await watches.renew(own.session)
        return own

    async def _open(self, link: Link, authorization: str | None, listener: Heard) -> _OwnSession:
        name, stale_value = stored_as(link), self._stale_values.get(link)
        stored = (await self.agent.store.recall(self.agent.key)).get(name)
        if stored is None or stored == stale_value:
            session = await link.connector.open(link.spec, authorization=authorization, heard=listener)
            resume_value = session.resume_with
            if resume_value is None:
                return _OwnSession(session, link.new_catalogue(), None)
            try:
                anew = self.agent.agent_session is None
                stored = await self.agent.store.remember(
                    self.agent.key, name, resume_value, instead_of=stale_value, anew=anew, leaves=True
                )
            except BaseException:
                await session.close(end=True)
                raise
            self._stale_values.pop(link, None)
            if stored is None:
                # The agent session has expired: no other replica resumes this session.
                return _OwnSession(session, link.new_catalogue(), None)
            if stored == resume_value:
                return _OwnSession(session, link.new_catalogue(), resume_value)
            # Another replica opened a session for this agent session at the same time: resume that one.
            await session.close(end=True)
        session = await link.connector.open(
            link.spec, authorization=authorization, resume=stored, heard=listener
        )
        return _OwnSession(session, link.new_catalogue(), stored)


def links_of(agent: ContextManager) -> AgentLinks:
    """The agent session's links, attached at the first call."""
    return agent.part(AgentLinks)


def stored_as(link: Link) -> str:
    """The name under which the store keeps an upstream session for other replicas."""
    return f"upstream:{link.spec.name}:{link.spec.url}"


def _resumable(own: _OwnSession) -> bool:
    return own.session.is_open and own.stored is not None
