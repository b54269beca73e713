"""One upstream server: what it offers, whether it is there, and the session that tells both."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from typing import Final

from cwm.background import cancel_and_wait
from cwm.domain.backoff import Backoff
from cwm.domain.upstream import Credentials, Kind, Offer, UpstreamSpec, offers
from cwm.ports.clock import Clock
from cwm.ports.upstream import UpstreamConnector, UpstreamError, UpstreamExpiredError, UpstreamSession
from cwm.services.upstreams.watches import Watches

# For upstreams that do not tell when their lists change.
_RELIST_SECONDS: Final = 300.0
# A session that lasted so long is had again at once when it is lost.
STEADY_SECONDS: Final = 5.0

_log = logging.getLogger("cwm.upstream")

Offers = Mapping[str, Offer]
Told = Callable[[Kind | str], None]
"""Called with the kind of offers that changed, or the exposed URI of a resource that did."""


class LinkState(StrEnum):
    CONNECTING = "connecting"
    READY = "ready"
    AWAY = "away"


class Catalogue:
    """What one upstream offers, by kind and exposed name."""

    def __init__(self, spec: UpstreamSpec) -> None:
        self._spec = spec
        self._offers: dict[Kind, Offers] = {}

    def of(self, kind: Kind) -> Offers:
        return self._offers.get(kind, {})

    async def learn(self, session: UpstreamSession, kinds: frozenset[Kind]) -> list[Kind]:
        """Ask for these kinds again; those that are not what they were."""
        changed = []
        for kind in sorted(kinds):
            now = offers(self._spec, kind, await session.definitions(kind))
            if now != self._offers.get(kind, {}):
                changed.append(kind)
            self._offers[kind] = now
        return changed


ALL_KINDS: Final = frozenset(Kind)


def kinds_of(heard: Kind) -> frozenset[Kind]:
    """Templates have no notification of their own: they change with the resources."""
    return frozenset({Kind.RESOURCES, Kind.TEMPLATES}) if heard is Kind.RESOURCES else frozenset({heard})


class Link:
    """Keeps one session with an upstream for as long as it is configured, and connects again when it is lost.

    That session tells what there is, and serves every caller of a stateless upstream. An upstream that is
    told who calls has none: what it offers is each caller's own matter.
    """

    def __init__(self, spec: UpstreamSpec, connector: UpstreamConnector, clock: Clock, told: Told) -> None:
        self.spec = spec
        self.connector = connector
        self.catalogue = Catalogue(spec)
        self.state = LinkState.CONNECTING
        self.reason: str | None = None
        self.since: datetime = clock.now()
        self.session: UpstreamSession | None = None
        self.watches = Watches()
        self._clock = clock
        self._told = told
        self._settled = asyncio.Event()
        self._is_ready = asyncio.Event()
        self._renewed = asyncio.Event()
        self._heard: set[Kind] = set()
        self._news = asyncio.Event()
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self._ready_at: float | None = None
        self._renewing = False
        self._modern = False

    @property
    def by_caller(self) -> bool:
        return self.spec.credentials is not Credentials.NONE

    @property
    def shared(self) -> bool:
        """One session serves all callers: nothing is kept for them, or the era has no sessions."""
        if self.by_caller:
            return False
        return self.spec.stateless or (bool(self.spec.url) and self._modern)

    def start(self) -> None:
        if self.by_caller:
            self._now(LinkState.READY)
        else:
            self._task = asyncio.create_task(self._keep())

    def reached(self) -> None:
        """Some caller met it."""
        if self.by_caller:
            self._now(LinkState.READY)

    def missed(self, reason: str) -> None:
        """Some caller did not meet it; others may yet."""
        self.reason = reason
        self._now(LinkState.AWAY)

    def monotonic(self) -> float:
        """Seconds."""
        return self._clock.monotonic()

    async def settled(self) -> None:
        """Returns once it is known whether the upstream is there, after ``connect_seconds`` at the latest."""
        if self._settled.is_set():
            return
        try:
            async with asyncio.timeout(self.spec.connect_seconds):
                await self._settled.wait()
        except TimeoutError:
            return

    async def ready(self) -> None:
        """Returns once the upstream is there, however long that takes."""
        await self._is_ready.wait()

    async def renewed(self) -> None:
        """Returns once it has a session after the one of now: the upstream may have been restarted."""
        await self._renewed.wait()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """While a request is under way, so that nothing is closed under it."""
        self._busy += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._busy -= 1
            if self._busy == 0:
                self._idle.set()

    async def idle(self) -> None:
        await self._idle.wait()

    def renew(self, stale: UpstreamSession) -> None:
        """Have another session instead of one that the upstream does not know any more."""
        if self.session is stale:
            self.session, self._renewing = None, True
            self._settled.clear()
            self._news.set()

    def doubt(self) -> None:
        """Somebody could not reach it: see whether it is still there."""
        self._news.set()

    async def aclose(self) -> None:
        if self._task is not None:
            await cancel_and_wait(self._task)
        self._settled.set()
        if self.session is not None:
            session, self.session = self.session, None
            await session.close(end=True)

    def hear(self, news: Kind | str) -> None:
        if isinstance(news, Kind):
            self._heard |= kinds_of(news)
            self._news.set()
        else:
            self._told(news)

    async def _keep(self) -> None:
        backoff = Backoff()
        while True:
            reason, lasted = await self._serve_once()
            if lasted >= STEADY_SECONDS or self._renewing:
                # It had been well: whoever asks now waits for the next session rather than be refused.
                self._renewing = False
                backoff.reset()
                self._settled.clear()
                continue
            self._away(reason)
            await asyncio.sleep(backoff.pause_seconds())

    async def _serve_once(self) -> tuple[str, float]:
        """Why it ended, and for how many seconds it was ready."""
        self._ready_at = None
        try:
            await self._serve()
            reason = "the connection was lost"
        except UpstreamError as failed:
            reason = str(failed)
        except Exception:  # noqa: BLE001 - logged; the next attempt may go well
            _log.exception("upstream %s could not be followed", self.spec.name)
            reason = "CWM failed; its log has the details"
        return reason, 0.0 if self._ready_at is None else self._clock.monotonic() - self._ready_at

    async def _serve(self) -> None:
        """Until the session is lost. Raises UpstreamError when there is none to be had."""
        session = await self.connector.open(self.spec, heard=self.hear)
        try:
            changed = await self.catalogue.learn(session, ALL_KINDS)
            was = self.state
            self.session, self._modern = session, session.modern
            self._ready_at = self._clock.monotonic()
            renewed, self._renewed = self._renewed, asyncio.Event()
            renewed.set()
            self._now(LinkState.READY)
            self._tell(changed if was is not LinkState.AWAY else list(Kind))
            await self.watches.renew(session)
            asking = asyncio.create_task(self.watches.ask_again(session))
            try:
                await self._follow(session)
            finally:
                asking.cancel()
        except UpstreamError as failed:
            self._renewing = self._renewing or isinstance(failed, UpstreamExpiredError)
            raise
        except asyncio.CancelledError:
            await session.close(end=True)
            raise
        finally:
            self.session = None
            # Calls that are under way in it are answered yet.
            session.retire(end=not self._renewing)

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
                kinds, self._heard = frozenset(self._heard) or ALL_KINDS, set()
                self._tell(await self.catalogue.learn(session, kinds))
        finally:
            ended.cancel()

    def _away(self, reason: str) -> None:
        was_ready = self.state is LinkState.READY
        self.reason = reason
        self._now(LinkState.AWAY)
        if was_ready:
            self._tell(list(Kind))

    def _now(self, state: LinkState) -> None:
        if state is LinkState.READY:
            self.reason = None
            self._is_ready.set()
        else:
            self._is_ready.clear()
        if state is not self.state:
            self.state, self.since = state, self._clock.now()
            _log.info("upstream %s is %s%s", self.spec.name, state, f": {self.reason}" if self.reason else "")
        self._settled.set()

    def _tell(self, kinds: list[Kind]) -> None:
        for kind in kinds:
            self._told(kind)
