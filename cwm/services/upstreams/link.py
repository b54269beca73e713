"""One upstream server: its offers, its state, and the session that both are read from."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from enum import StrEnum
from typing import Final

from cwm.background import cancel_and_wait
from cwm.domain.backoff import Backoff
from cwm.domain.upstream import Credentials, Offer, OfferKind, UpstreamSpec, exposed_name, offers
from cwm.domain.upstream_tools import INSTRUCTIONS
from cwm.ports.clock import Clock
from cwm.ports.upstream import (
    UpstreamBusyError,
    UpstreamConnector,
    UpstreamError,
    UpstreamExpiredError,
    UpstreamRefusedError,
    UpstreamRejectedError,
    UpstreamSession,
)
from cwm.services.upstreams.tool_watch import ToolWatch, Versions
from cwm.services.upstreams.watches import Watches

# For upstreams that send no list_changed notifications.
_RELIST_SECONDS: Final = 300.0
# A lost session that lasted this long is reopened at once, without back-off.
STEADY_SECONDS: Final = 5.0
# As old may a list be when somebody asks, and so long may that one wait for it to be listed again.
FRESH_SECONDS: Final = 5.0
_MOMENT_SECONDS: Final = 0.5
_MOST_NAMES: Final = 20

_log = logging.getLogger("cwm.upstream")

Offers = Mapping[str, Offer]
OnChange = Callable[[OfferKind | str], None]
"""Called with the kind of offers that changed, or the exposed URI of a resource that did."""


class LinkState(StrEnum):
    CONNECTING = "connecting"
    READY = "ready"
    AWAY = "away"


class Catalogue:
    """The offers of one upstream, by kind and exposed name."""

    def __init__(self, spec: UpstreamSpec, watch: ToolWatch | None) -> None:
        self._spec = spec
        self._watch = watch
        self._versions = Versions()
        self._instructions: str | None = None
        self._offers: dict[OfferKind, Offers] = {}
        self._omissions: dict[OfferKind, str] = {}

    def missing(self, kind: OfferKind) -> str | None:
        """What the lists of this kind leave out, and why; None if nothing."""
        reasons = [self._omissions.get(kind)]
        if kind is OfferKind.TOOLS and self._spec.pin_tools and (unaccepted := self._unaccepted()):
            names = ", ".join(sorted(unaccepted)[:_MOST_NAMES])
            reasons.append(
                f"{len(unaccepted)} of its tools changed and are hidden until `cwm upstreams accept`: {names}"
            )
        if kind is OfferKind.TOOLS and self._spec.pin_tools and self._unaccepted_instructions() is not None:
            reasons.append("its instructions changed and are hidden until `cwm upstreams accept`")
        return "; ".join(filter(None, reasons)) or None

    def of(self, kind: OfferKind) -> Offers:
        offers = self._offers.get(kind, {})
        if kind is OfferKind.TOOLS and self._spec.pin_tools and (unaccepted := self._unaccepted()):
            return {name: offer for name, offer in offers.items() if offer.own_name not in unaccepted}
        return offers

    def changed(self) -> Mapping[str, datetime]:
        """The tools, by exposed name, that changed and are not accepted, and since when they are so; instructions likewise."""
        unaccepted = self._unaccepted()
        offers = self.of(OfferKind.TOOLS) if unaccepted else {}
        changes = {
            name: unaccepted[offer.own_name] for name, offer in offers.items() if offer.own_name in unaccepted
        }
        if not self._spec.pin_tools and (since := self._unaccepted_instructions()) is not None:
            changes[exposed_name(self._spec.name, INSTRUCTIONS)] = since
        return changes

    async def instructions(self) -> str | None:
        """What the upstream tells models of itself; None while that is hidden."""
        if self._watch is not None:
            await self._watch.refresh(self._spec.name)
        hidden = self._spec.pin_tools and self._unaccepted_instructions() is not None
        return self._instructions if self._spec.instructions and not hidden else None

    def _unaccepted_instructions(self) -> datetime | None:
        if self._watch is None or not self._spec.instructions:
            return None
        return self._watch.unaccepted_instructions(self._spec.name, self._versions)

    def _unaccepted(self) -> Mapping[str, datetime]:
        return {} if self._watch is None else self._watch.unaccepted(self._spec.name, self._versions)

    async def learn(self, session: UpstreamSession, kinds: frozenset[OfferKind]) -> list[OfferKind]:
        """List these kinds again; returns those that changed.

        A kind that the upstream refuses to list is as it was, and named. If it refuses all of them, raises its UpstreamError.
        """
        changed, refusals = list[OfferKind](), list[UpstreamError]()
        for kind in sorted(kinds):
            try:
                listing = await session.definitions(kind)
            except (UpstreamBusyError, UpstreamRefusedError, UpstreamRejectedError) as error:
                if isinstance(error, UpstreamBusyError) and error.may_be_down:
                    raise
                refusals.append(error)
                self._note_missing(kind, f"its {kind} are not listed: {error}")
                continue
            self._note_missing(kind, listing.missing)
            if kind is OfferKind.TOOLS:
                instructions = session.instructions
                if self._watch is not None:
                    self._versions = await self._watch.note(self._spec, listing.definitions, instructions)
                self._instructions = instructions
            now = offers(self._spec, kind, listing.definitions)
            if now != self._offers.get(kind, {}):
                changed.append(kind)
            self._offers[kind] = now
        if refusals and not any(self._offers.get(kind) for kind in kinds):
            raise refusals[0]
        return changed

    def _note_missing(self, kind: OfferKind, omission: str | None) -> None:
        if omission is None:
            self._omissions.pop(kind, None)
        elif self._omissions.get(kind) != omission:
            self._omissions[kind] = omission
            _log.warning("upstream %s: %s", self._spec.name, omission)


ALL_KINDS: Final = frozenset(OfferKind)


def kinds_of(kind: OfferKind) -> frozenset[OfferKind]:
    """The kinds that a notification concerns. Templates have none of their own: they change with the resources."""
    if kind is OfferKind.RESOURCES:
        return frozenset({OfferKind.RESOURCES, OfferKind.TEMPLATES})
    return frozenset({kind})


class Link:
    """Keeps one session with an upstream while it is configured, and reconnects when it is lost.

    That session lists the offers, and serves all callers of a stateless upstream. An upstream that needs the caller's
    credentials has no such session: its offers are listed for each caller.

    ``ready`` is set while the upstream is ready, ``idle`` while no request is running. ``renewed`` is set by the session
    after the current one: the upstream may have been restarted.
    """

    def __init__(
        self,
        spec: UpstreamSpec,
        connector: UpstreamConnector,
        clock: Clock,
        on_change: OnChange,
        watch: ToolWatch | None = None,
    ) -> None:
        self.spec = spec
        self.connector = connector
        self._watch = watch
        self.catalogue = self.new_catalogue()
        self.state = LinkState.CONNECTING
        self.reason: str | None = None
        self.since: datetime = clock.now()
        self.session: UpstreamSession | None = None
        self.watches = Watches()
        self.clock = clock
        self._on_change = on_change
        self._settled = asyncio.Event()
        self.ready = asyncio.Event()
        self.renewed = asyncio.Event()
        self._changed_kinds: set[OfferKind] = set()
        self._news = asyncio.Event()
        self._listed_at = 0.0
        self._listed = asyncio.Event()
        self._busy = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self._task: asyncio.Task[None] | None = None
        self._ready_at: float | None = None
        self._renewing = False
        self._modern = False

    @property
    def by_caller(self) -> bool:
        """Whether the upstream needs the caller's credentials."""
        return self.spec.credentials is not Credentials.NONE

    @property
    def shared(self) -> bool:
        """One session serves all callers: the upstream keeps no state for them, or its era has no sessions."""
        if self.by_caller:
            return False
        return self.spec.stateless or (bool(self.spec.url) and self._modern)

    def new_catalogue(self) -> Catalogue:
        """For a session that is listed by itself."""
        return Catalogue(self.spec, self._watch)

    def start(self) -> None:
        if self.by_caller:
            self._now(LinkState.READY)
        else:
            self._task = asyncio.create_task(self._keep())

    def reached(self) -> None:
        """A caller reached the upstream."""
        if self.by_caller:
            self._now(LinkState.READY)

    def missed(self, reason: str) -> None:
        """A caller could not reach the upstream; others may."""
        self.reason = reason
        self._now(LinkState.AWAY)

    async def settled(self) -> None:
        """Wait until the upstream's state is known, ``connect_seconds`` at most."""
        if not self._settled.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self.spec.connect_seconds):
                    await self._settled.wait()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Mark a request as running, so that the link is not closed under it."""
        self._busy += 1
        self.idle.clear()
        try:
            yield
        finally:
            self._busy -= 1
            if self._busy == 0:
                self.idle.set()

    def renew(self, stale: UpstreamSession) -> None:
        """Replace a session that the upstream no longer knows."""
        if self.session is stale:
            self.session, self._renewing = None, True
            self._settled.clear()
            self._news.set()

    def doubt(self) -> None:
        """A caller could not reach the upstream: check whether it is up."""
        self._news.set()

    async def refresh(self) -> None:
        """Have an old list listed again, if the upstream may have been restarted unnoticed. Waits half a second at most."""
        session = self.session
        if session is None or session.hears or self.clock.monotonic() - self._listed_at < FRESH_SECONDS:
            return
        event = self._listed
        self.doubt()
        with suppress(TimeoutError):
            async with asyncio.timeout(_MOMENT_SECONDS):
                await event.wait()

    async def aclose(self) -> None:
        if self._task is not None:
            await cancel_and_wait(self._task)
        self._settled.set()
        if self.session is not None:
            session, self.session = self.session, None
            await session.close(end=True)

    def hear(self, news: OfferKind | str) -> None:
        """Handle a notification: a kind of offers, or the URI of a resource, that changed."""
        if isinstance(news, OfferKind):
            self._changed_kinds |= kinds_of(news)
            self._news.set()
        else:
            self._on_change(news)

    async def _keep(self) -> None:
        backoff = Backoff()
        while True:
            reason, seconds = await self._serve_once()
            if seconds >= STEADY_SECONDS or self._renewing:
                # It was stable: callers wait for the next session instead of being refused.
                self._renewing = False
                backoff.reset()
                self._settled.clear()
                continue
            self._away(reason)
            await asyncio.sleep(backoff.pause_seconds())

    async def _serve_once(self) -> tuple[str, float]:
        """Serve one session; returns why it ended and for how many seconds it was ready."""
        self._ready_at = None
        try:
            await self._serve()
            reason = "the connection was lost"
        except UpstreamError as error:
            reason = error.reason
        except Exception:  # noqa: BLE001 - logged; the next attempt may go well
            _log.exception("the connection to upstream %s failed", self.spec.name)
            reason = "CWM failed; its log has the details"
        return reason, 0.0 if self._ready_at is None else self.clock.monotonic() - self._ready_at

    async def _serve(self) -> None:
        """Open a session and follow it until it is lost. Raises UpstreamError if none can be opened."""
        session = await self.connector.open(self.spec, heard=self.hear)
        try:
            changed = await self._learn(session, ALL_KINDS)
            previous_state = self.state
            self.session, self._modern = session, session.modern
            self._ready_at = self.clock.monotonic()
            renewed, self.renewed = self.renewed, asyncio.Event()
            renewed.set()
            self._now(LinkState.READY)
            self._tell(changed if previous_state is not LinkState.AWAY else list(OfferKind))
            await self.watches.renew(session)
            asking = asyncio.create_task(self.watches.ask_again(session))
            try:
                await self._follow(session)
            finally:
                asking.cancel()
        except UpstreamError as error:
            self._renewing = self._renewing or isinstance(error, UpstreamExpiredError)
            raise
        except asyncio.CancelledError:
            await session.close(end=True)
            raise
        finally:
            self.session = None
            # Calls that run in it are still answered.
            session.retire(end=not self._renewing)

    async def _learn(self, session: UpstreamSession, kinds: frozenset[OfferKind]) -> list[OfferKind]:
        changed = await self.catalogue.learn(session, kinds)
        if kinds == ALL_KINDS:
            self._listed_at = self.clock.monotonic()
            listed, self._listed = self._listed, asyncio.Event()
            listed.set()
        return changed

    async def _follow(self, session: UpstreamSession) -> None:
        ended = asyncio.create_task(session.ended())
        try:
            while not ended.done():
                news = asyncio.create_task(self._news.wait())
                await asyncio.wait(
                    {ended, news}, timeout=_RELIST_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                news.cancel()
                if ended.done():
                    return
                self._news.clear()
                if self._renewing:
                    return
                kinds, self._changed_kinds = frozenset(self._changed_kinds) or ALL_KINDS, set()
                self._tell(await self._learn(session, kinds))
        finally:
            ended.cancel()

    def _away(self, reason: str) -> None:
        was_ready = self.state is LinkState.READY
        self.missed(reason)
        if was_ready:
            self._tell(list(OfferKind))

    def _now(self, state: LinkState) -> None:
        if state is LinkState.READY:
            self.reason = None
            self.ready.set()
        else:
            self.ready.clear()
        if state is not self.state:
            self.state, self.since = state, self.clock.now()
            _log.info("upstream %s is %s%s", self.spec.name, state, f": {self.reason}" if self.reason else "")
        self._settled.set()

    def _tell(self, kinds: list[OfferKind]) -> None:
        for kind in kinds:
            self._on_change(kind)
