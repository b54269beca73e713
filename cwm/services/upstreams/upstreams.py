"""The configured upstream servers: their offers to a caller, and calls to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from cwm.domain.errors import (
    CwmError,
    InvalidParameterError,
    UpstreamUnavailableError,
)
from cwm.domain.upstream import Offer, OfferKind, UpstreamSpec
from cwm.domain.upstream_uris import ServedUris, is_elsewhere, own_uri, uris_in, with_uris
from cwm.ports.changes import Changes
from cwm.ports.clock import Clock
from cwm.ports.meter import Meter
from cwm.ports.tracing import UNTRACED, Tracer
from cwm.ports.upstream import (
    Denial,
    OnLog,
    Progress,
    UpstreamAwayError,
    UpstreamBusyError,
    UpstreamConnector,
    UpstreamError,
    UpstreamExpiredError,
    UpstreamLostError,
    UpstreamRefusedError,
    UpstreamSession,
)
from cwm.services.agents.agents import Agents
from cwm.services.agents.context_manager import ContextManager
from cwm.services.upstreams.agent_links import AgentLinks, links_of, stored_as
from cwm.services.upstreams.call import not_there, once_more, recorded, rejected
from cwm.services.upstreams.link import Catalogue, Link, LinkState, Offers
from cwm.services.upstreams.roster import Roster
from cwm.services.upstreams.tool_watch import ToolWatch

_log = logging.getLogger("cwm.upstream")


@dataclass(frozen=True, slots=True)
class Offering:
    """Offers by exposed name, and for each upstream of which something is absent the reason.

    ``changed``: the tools among them that are not what they were first, and since when.
    """

    offers: Mapping[str, Offer]
    absent: Mapping[str, str]
    changed: Mapping[str, datetime]


@dataclass(frozen=True, slots=True)
class UpstreamHealth:
    """``tools``: how many it offers, None if that depends on the caller. ``missing``: what its lists leave out."""

    name: str
    state: LinkState
    since: datetime
    reason: str | None
    tools: int | None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CallerOf:
    """Who calls an upstream: the agent session, and its credentials for upstreams that need them."""

    agent: ContextManager
    authorization: str | None = None

    @property
    def links(self) -> AgentLinks:
        return links_of(self.agent)


class Upstreams:
    """All upstreams by name. They can be reconfigured at runtime: a running call completes at the upstream it started at.

    ``listening`` has their resource subscriptions.
    """

    def __init__(
        self,
        connector: UpstreamConnector,
        agents: Agents,
        changes: Changes,
        meter: Meter,
        clock: Clock,
        tracer: Tracer = UNTRACED,
        watch: ToolWatch | None = None,
    ) -> None:
        agents.at_farewell(self._leave)
        self._meter = meter
        self._tracer = tracer
        self._watch = watch
        self.roster = Roster(connector, agents, changes, clock, self.resource, self._tell_upstream, watch)
        self._links = self.roster.links
        self._news = self.roster.news
        self.listening = self.roster.listening

    async def configure(self, specs: Iterable[UpstreamSpec]) -> None:
        """Replace the set of upstreams; connects and disconnects in the background."""
        self.roster.configure(specs)

    def names(self) -> list[str]:
        return list(self._links)

    def named_by(self, exposed: str) -> str | None:
        """The upstream whose prefix the exposed name has, whether or not it offers that name."""
        upstream = exposed.partition("_")[0]
        return upstream if upstream in self._links else None

    async def offering(self, caller: CallerOf, kind: OfferKind) -> Offering:
        """All offers of one kind to this caller. Waits for upstreams that are still connecting, not for those that are away."""
        links = list(self._links.values())
        results = await asyncio.gather(*(self._offers(link, kind, caller, hurried=True) for link in links))
        offers: dict[str, Offer] = {}
        absent: dict[str, str] = {}
        changes: dict[str, datetime] = {}
        for link, result in zip(links, results, strict=True):
            if isinstance(result, str):
                absent[link.spec.name] = result
            else:
                offers.update(result)
                catalogue = caller.links.catalogue(link) if link.by_caller else link.catalogue
                if catalogue is None:
                    continue
                if (omission := catalogue.missing(kind)) is not None:
                    absent[link.spec.name] = omission
                if kind is OfferKind.TOOLS:
                    changes |= catalogue.changed()
        return Offering(offers, absent, changes)

    async def offer(self, caller: CallerOf, kind: OfferKind, exposed: str) -> Offer | None:
        """The tool or prompt with this exposed name, or None. CWM-5003 if its upstream is away and may have it."""
        upstream = self.named_by(exposed)
        if upstream is None:
            return None
        link = self._links[upstream]
        offers = await self._offers(link, kind, caller, hurried=False)
        if not (link.by_caller or isinstance(offers, str) or exposed in offers):
            await link.refresh()
            offers = await self._offers(link, kind, caller, hurried=False)
        if not isinstance(offers, str):
            return offers.get(exposed)
        catalogue = link.catalogue.of(kind)
        if catalogue and exposed not in catalogue:
            return None
        if isinstance(offers, Denial):
            raise rejected(upstream, offers)
        raise not_there(upstream, offers)

    def resource(self, exposed: str) -> tuple[str, str] | None:
        """The upstream and its own URI for an exposed one, if an upstream can have it; templates allow unlisted URIs."""
        for name, link in self._links.items():
            own = own_uri(name, exposed)
            if own is not None and link.spec.resources.admits_uri(own):
                return name, own
        return None

    async def with_exposed_uris(
        self,
        caller: CallerOf,
        upstream: str,
        answer: Mapping[str, Any],
        requested: tuple[str, str] | None = None,
    ) -> dict[str, Any]:
        """The answer with its URIs as clients know them. ``requested``: the upstream's own URI that was asked for, and the client's."""
        served = ServedUris(upstream, requested=requested)
        if any(is_elsewhere(uri) and served.exposed(uri) == uri for uri in uris_in(answer)):
            listed = await self._own_names(caller, upstream, OfferKind.RESOURCES)
            templates = await self._own_names(caller, upstream, OfferKind.TEMPLATES)
            served = ServedUris(upstream, frozenset(listed), tuple(templates), requested)
        return with_uris(answer, served.exposed)

    async def catalogue(self, link: Link, caller: CallerOf) -> Catalogue | None:
        """What an upstream that needs the caller's credentials offers to this caller; None while it is away."""
        offers = await self._offers(link, OfferKind.TOOLS, caller, hurried=True)
        return None if isinstance(offers, str) else caller.links.catalogue(link)

    def is_shared(self, upstream: str) -> bool:
        """Whether one session serves all callers, so that the agent session makes no difference."""
        link = self._links.get(upstream)
        return link is not None and link.shared

    def knows_callers(self, upstream: str) -> bool:
        """Whether it receives the caller's credentials, so that answers belong to one caller."""
        link = self._links.get(upstream)
        return link is not None and link.by_caller

    async def request(
        self,
        caller: CallerOf,
        upstream: str,
        method: str,
        params: Mapping[str, Any],
        *,
        repeatable: bool,
        on_progress: Progress | None = None,
        on_log: OnLog | None = None,
        resume: str | None = None,
    ) -> dict[str, Any]:
        """The upstream's answer. Raises UpstreamRefusedError if it returns an error, CWM-5003/5004/6001 if it is away or lost.

        A request that the upstream cannot have seen is sent again, if necessary in a new session; one that it may have
        seen, only if ``repeatable``. It is not repeated twice after the same type of failure. ``resume`` stands for the
        session to ask in; if the upstream no longer knows that one, the caller's is used.
        """
        link = self._links.get(upstream)
        if link is None:
            raise UpstreamUnavailableError(
                f"Upstream {upstream} is not configured any more.", upstream=upstream
            )

        async def ask_in(session: UpstreamSession) -> dict[str, Any]:
            return await session.request(
                method,
                params,
                timeout_seconds=link.spec.call_seconds,
                total_seconds=link.spec.total_seconds,
                authorization=_authorization(link, caller),
                on_progress=on_progress,
                on_log=on_log,
            )

        async def ask() -> dict[str, Any]:
            async with self._resumed(link, caller, resume) as earlier_session:
                if earlier_session is not None:
                    with suppress(UpstreamExpiredError):
                        return await ask_in(earlier_session)
            session = await self._session(link, caller)
            async with self._dropped_if_gone(link, caller, session):
                return await ask_in(session)

        principal = caller.agent.principal
        with link.busy(), recorded(self._meter, self._tracer, link, principal, method, params) as span:
            async with caller.agent.serving():
                answer = await once_more(link, ask, repeatable=repeatable)
            if answer.get("isError") is True:
                span.failed("tool_error")
            return answer

    def outlasting_session(self, caller: CallerOf, upstream: str) -> str | None:
        """With what the caller's own session at the upstream can be resumed; it is not ended from now on, only left.

        None if all callers share one, or if it cannot be resumed.
        """
        link = self._links.get(upstream)
        return None if link is None or link.shared else caller.links.outlasting(link)

    def health(self) -> list[UpstreamHealth]:
        """The current state of every upstream."""
        return [
            UpstreamHealth(
                *(name, link.state, link.since, link.reason),
                None if link.by_caller else len(link.catalogue.of(OfferKind.TOOLS)),
                tuple(filter(None, map(link.catalogue.missing, OfferKind))),
            )
            for name, link in self._links.items()
        ]

    async def aclose(self) -> None:
        await self.roster.aclose()

    async def _tell_upstream(
        self,
        link: Link,
        agent: ContextManager,
        authorization: str | None,
        tell: Callable[[UpstreamSession, str | None], Awaitable[None]],
    ) -> None:
        caller = CallerOf(agent, authorization)
        if link.by_caller and authorization is None and caller.links.opened(link) is None:
            return

        async def request() -> dict[str, Any]:
            session = await self._session(link, caller)
            async with self._dropped_if_gone(link, caller, session):
                await tell(session, None if authorization is None else _authorization(link, caller))
            return {}

        try:
            with link.busy():
                async with agent.serving():
                    await once_more(link, request, repeatable=True)
        except UpstreamRefusedError as error:
            raise InvalidParameterError(
                f"Upstream {link.spec.name} refuses: {error}.", field="uri", upstream=link.spec.name
            ) from error

    async def _leave(self, values: Mapping[str, str]) -> None:
        for link in list(self._links.values()):
            if (resume := values.get(stored_as(link))) is not None:
                with suppress(UpstreamError):
                    session = await link.connector.open(link.spec, resume=resume)
                    await session.close(end=True)

    @asynccontextmanager
    async def _dropped_if_gone(
        self, link: Link, caller: CallerOf, session: UpstreamSession
    ) -> AsyncIterator[None]:
        try:
            yield
            link.reached()
        except UpstreamAwayError:
            self._doubt(link, caller)
            raise
        except UpstreamBusyError as error:
            if error.may_be_down:
                self._doubt(link, caller)
            raise
        except UpstreamExpiredError:
            self._drop(link, caller, session)
            # What serves it now may offer other things.
            link.doubt()
            raise
        except UpstreamLostError:
            self._doubt(link, caller)
            if not session.is_open:
                self._drop(link, caller, session)
            raise

    def _doubt(self, link: Link, caller: CallerOf) -> None:
        """Check whether the upstream is up; with this caller's credentials if it needs them."""
        if not link.by_caller:
            link.doubt()
            return
        for kind in OfferKind:
            caller.links.outdated(link, kind)
        self.roster.background.start(self._look(link, caller))

    async def _look(self, link: Link, caller: CallerOf) -> None:
        if self._links.get(link.spec.name) is link:
            # The next caller gets the result.
            with suppress(CwmError):
                await self._offers(link, OfferKind.TOOLS, caller, hurried=False)

    async def _session(self, link: Link, caller: CallerOf) -> UpstreamSession:
        await link.settled()
        if link.shared:
            if link.session is None:
                raise UpstreamAwayError(link.reason or f"it is {link.state}")
            return link.session
        agent = caller.agent
        session = await caller.links.session(
            link, _authorization(link, caller), self._news.hearing(link, agent)
        )
        self.listening.keep_up(link, agent)
        return session

    @asynccontextmanager
    async def _resumed(
        self, link: Link, caller: CallerOf, resume: str | None
    ) -> AsyncIterator[UpstreamSession | None]:
        """The session that ``resume`` stands for; None if it is the one that the caller has, or that all share."""
        await link.settled()
        if resume is None or link.shared or caller.links.is_in(link, resume):
            yield None
            return
        session = await link.connector.open(
            link.spec, authorization=_authorization(link, caller), resume=resume
        )
        try:
            yield session
        finally:
            await session.close(end=False)

    def _drop(self, link: Link, caller: CallerOf, session: UpstreamSession) -> None:
        if link.shared or link.session is session:
            link.renew(session)
        else:
            caller.links.drop(link, session)

    async def _own_names(self, caller: CallerOf, upstream: str, kind: OfferKind) -> list[str]:
        """What the upstream lists to this caller, by its own names; nothing if that is not known."""
        link = self._links.get(upstream)
        offers: Offers | str = {} if link is None else link.catalogue.of(kind)
        if link is not None and link.by_caller:
            with suppress(CwmError):
                offers = await self._offers(link, kind, caller, hurried=True)
        return [] if isinstance(offers, str) else [offer.own_name for offer in offers.values()]

    async def _offers(self, link: Link, kind: OfferKind, caller: CallerOf, *, hurried: bool) -> Offers | str:
        """The upstream's offers, or the reason why there are none."""
        async with caller.agent.serving():
            await link.settled()
        if self._watch is not None and kind is OfferKind.TOOLS:
            await self._watch.refresh(link.spec.name)
        if not link.by_caller:
            if hurried:
                await link.refresh()
                await link.settled()
            return link.catalogue.of(kind) if link.state is LinkState.READY else link.reason or link.state
        agent, authorization = caller.agent, _authorization(link, caller)
        if hurried:
            caller.links.age(link, kind)
        if (fresh := caller.links.fresh_offers(link, kind)) is not None:
            return fresh

        async def learn() -> Offers:
            with link.busy():
                async with agent.serving():
                    return await caller.links.offers(link, kind, authorization, hearing)

        hearing = self._news.hearing(link, agent)
        attempts = caller.links.attempts(link, partial(self._news.changed_for, agent))
        with link.busy():
            async with agent.serving():
                return await attempts.offers(kind, authorization, learn, hurried=hurried)


def _authorization(link: Link, caller: CallerOf) -> str | None:
    """The caller's credentials, empty if it sent none, so that nobody else's are used. None if the upstream needs none."""
    return caller.authorization or "" if link.by_caller else None
