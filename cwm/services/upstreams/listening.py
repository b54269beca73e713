"""Keeps resource subscriptions alive across upstream reconnects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from cwm.domain.backoff import Backoff
from cwm.domain.errors import CwmError
from cwm.domain.principal import Principal
from cwm.domain.upstream import is_reserved_uri
from cwm.domain.upstream_uris import exposed_uri, own_uri
from cwm.ports.upstream import Heard, UpstreamError, UpstreamExpiredError, UpstreamSession
from cwm.services.agents.agents import Agents
from cwm.services.agents.context_manager import ContextManager
from cwm.services.upstreams.agent_links import links_of
from cwm.services.upstreams.link import STEADY_SECONDS, Link

Find = Callable[[str], tuple[str, str] | None]
"""Returns the upstream and its own URI for an exposed one."""

Tell = Callable[
    [Link, ContextManager, str | None, Callable[[UpstreamSession, str | None], Awaitable[None]]],
    Awaitable[None],
]
"""Runs a request in an agent session's upstream session, with the given authorization. Raises CwmError."""

Hearing = Callable[[Link, ContextManager], Heard]

_log = logging.getLogger("cwm.upstream")


class Listening:
    """One task per (agent session, upstream) keeps the upstream session open that subscriptions need.

    There is no task if all callers share one upstream session, or if the upstream needs the caller's credentials: these
    are not kept, so the subscription is renewed at the next call. A URI that no configured upstream can have waits until
    one is configured that can.
    """

    def __init__(
        self, links: Mapping[str, Link], agents: Agents, find: Find, tell: Tell, hearing: Hearing
    ) -> None:
        """``links``: the configured upstreams by name, updated by their owner."""
        self._links = links
        self._agents = agents
        agents.at_end(self._forget)
        self._find = find
        self._tell = tell
        self._hearing = hearing
        self._keeping: dict[tuple[Link, ContextManager], asyncio.Task[None]] = {}
        # Exposed URIs that no configured upstream has.
        self._awaited: dict[ContextManager, set[str]] = {}

    async def watch(
        self, principal: Principal, agent_session: str | None, uri: str, authorization: str | None = None
    ) -> None:
        """Subscribe to an upstream's resource, if the upstream supports it. CWM-1003, 2004, 5003.

        Without a request (``authorization`` is None) an upstream that needs the caller's credentials is asked at the next
        call. Any other that is away is asked when it is back, and one that does not answer is asked again.
        """
        while not is_reserved_uri(uri):
            agent = await self._agents.get(principal, agent_session)
            if (target := self._find(uri)) is not None:
                link, own = self._links[target[0]], target[1]
                async with agent.serving():
                    await link.settled()
                    agent.refuse_if_ended()
                    if self._is_current(link) and await self._began(link, agent, own, authorization):
                        return
            elif self._agents.held(principal, agent_session) is agent:
                self._await(agent, uri)
                return

    async def unwatch(self, principal: Principal, agent_session: str | None, uri: str) -> None:
        """Unsubscribe, because no client of the agent session listens any more. Raises as :meth:`watch` does."""
        agent = self._agents.held(principal, agent_session)
        if agent is None:
            return
        self._await_no_more(agent, uri)
        if (target := self._find(uri)) is None:
            return
        link, own = self._links[target[0]], target[1]
        was_last = links_of(agent).watches(link).remove(own, agent.key)
        if link.shared:
            was_last = link.watches.remove(own, agent.key)
        if not links_of(agent).listens_to(link):
            self._stop(link, agent)
        if was_last and (link.shared or links_of(agent).opened(link) is not None):
            await self._tell(link, agent, None, lambda session, _: session.unwatch(own))

    def keep_up(self, link: Link, agent: ContextManager) -> None:
        """Start the task that keeps the agent session's subscriptions alive, if it needs one and has none."""
        key = link, agent
        if link.by_caller or key in self._keeping or not links_of(agent).listens_to(link):
            return
        task = self._keeping[key] = asyncio.create_task(self._keep(link, agent))

        def ended(_: object) -> None:
            if self._keeping.get(key) is task:
                del self._keeping[key]

        task.add_done_callback(ended)

    def hand_over(self, old: Link, new: Link) -> None:
        """Move all subscriptions from ``old`` to ``new``, which replaces it."""
        for agent in self._agents:
            links_of(agent).succeed(old, new)
        self.stop(old)
        self.take_up(new)

    def take_up(self, link: Link) -> None:
        """Subscribe at a new upstream to the waiting URIs that it can have."""
        for agent, uris in list(self._awaited.items()):
            for uri in list(uris):
                own = own_uri(link.spec.name, uri)
                if own is not None and link.spec.resources.admits_uri(own):
                    self._await_no_more(agent, uri)
                    links_of(agent).watches(link).add(own, agent.key)
            self.keep_up(link, agent)

    def stop(self, link: Link) -> None:
        """Stop all tasks of an upstream; its subscriptions wait for another upstream that can have them."""
        for task_link, agent in list(self._keeping):
            if task_link is link:
                self._stop(link, agent)
        for agent in self._agents:
            for own in links_of(agent).unlisten(link):
                self._await(agent, exposed_uri(link.spec.name, own))

    def _is_current(self, link: Link) -> bool:
        return self._links.get(link.spec.name) is link

    async def _began(self, link: Link, agent: ContextManager, own: str, authorization: str | None) -> bool:
        """Subscribe at the upstream; False if it was replaced before it could be asked. Raises CwmError."""
        # With a shared upstream session there is no per-agent session to check, but the agent session listens too.
        is_first = links_of(agent).watches(link).add(own, agent.key)
        if link.shared:
            is_first = link.watches.add(own, agent.key)
        if is_first:
            try:
                await self._tell(link, agent, authorization, lambda session, by: session.watch(own, by))
            except BaseException as error:
                retry = isinstance(error, CwmError) and error.retryable
                # Without a request no client would ask again, so keep the subscription and retry.
                if not (retry and authorization is None and self._is_current(link)):
                    self._give_up(link, agent, own)
                    if isinstance(error, CwmError) and not self._is_current(link):
                        return False
                    raise
                _log.info("subscriptions at upstream %s are interrupted: %s", link.spec.name, error)
                (link.watches if link.shared else links_of(agent).watches(link)).missed(own)
        if not link.shared:
            self.keep_up(link, agent)
        return True

    def _give_up(self, link: Link, agent: ContextManager, own: str) -> None:
        for each in {link, self._links.get(link.spec.name, link)}:
            each.watches.remove(own, agent.key)
            # Other listeners of the URI may have relied on this request.
            each.watches.missed(own)
            links_of(agent).watches(each).remove(own, agent.key)
        self._await_no_more(agent, exposed_uri(link.spec.name, own))

    def _await(self, agent: ContextManager, uri: str) -> None:
        self._awaited.setdefault(agent, set()).add(uri)

    def _await_no_more(self, agent: ContextManager, uri: str) -> None:
        if (uris := self._awaited.get(agent)) is not None:
            uris.discard(uri)
            if not uris:
                del self._awaited[agent]

    async def _keep(self, link: Link, agent: ContextManager) -> None:
        """Keep the upstream session open until it turns out to be shared, or the agent session was unused for its TTL."""
        backoff = Backoff()
        while links_of(agent).listens_to(link):
            await link.ready.wait()
            if link.shared:
                await self._share(link, agent)
                return
            # Opening an upstream session counts as use; this task alone must not keep the agent session alive.
            if link.clock.monotonic() - agent.last_used > self._agents.ttl_seconds:
                return
            seconds = 0.0
            try:
                session = await links_of(agent).session(link, None, self._hearing(link, agent))
                opened_at = link.clock.monotonic()
                await self._until_lost(link, agent, session)
                seconds = link.clock.monotonic() - opened_at
            except (UpstreamError, CwmError) as error:
                _log.info("subscriptions at upstream %s are interrupted: %s", link.spec.name, error)
            except Exception:
                logging.getLogger(__name__).exception("subscriptions at upstream %s failed", link.spec.name)
            if seconds >= STEADY_SECONDS:
                backoff.reset()
                continue
            await asyncio.sleep(backoff.pause_seconds())

    async def _until_lost(self, link: Link, agent: ContextManager, session: UpstreamSession) -> None:
        retries = asyncio.create_task(links_of(agent).watches(link).ask_again(session))
        try:
            while session.is_open:
                ended = asyncio.create_task(session.ended())
                renewed = asyncio.create_task(link.renewed.wait())
                try:
                    await asyncio.wait({ended, renewed}, return_when=asyncio.FIRST_COMPLETED)
                    if renewed.done() and session.is_open and not await self._knows(link, session):
                        links_of(agent).drop(link, session)
                        return
                finally:
                    ended.cancel()
                    renewed.cancel()
        finally:
            retries.cancel()

    async def _knows(self, link: Link, session: UpstreamSession) -> bool:
        """Ping the upstream: a restarted server rejects an unknown session only when a request arrives."""
        try:
            await session.request("ping", {}, timeout_seconds=link.spec.connect_seconds)
        except UpstreamError as error:
            return not isinstance(error, UpstreamExpiredError)
        return True

    async def _share(self, link: Link, agent: ContextManager) -> None:
        for own in links_of(agent).watches(link).uris():
            # It may have been unsubscribed during the last request.
            is_wanted = own in links_of(agent).watches(link).uris()
            if is_wanted and link.watches.add(own, agent.key) and link.session is not None:
                await link.watches.ask(link.session, own)

    def _stop(self, link: Link, agent: ContextManager) -> asyncio.Task[None] | None:
        if (task := self._keeping.pop((link, agent), None)) is not None:
            task.cancel()
        return task

    async def _forget(self, agent: ContextManager) -> None:
        self._awaited.pop(agent, None)
        stopping = [self._stop(link, agent) for link, listener in list(self._keeping) if listener is agent]
        if tasks := [task for task in stopping if task is not None]:
            # An upstream session that is just being opened is closed with the agent session, or by the opener.
            await asyncio.wait(tasks)
        for link in list(self._links.values()):
            for own in link.watches.forget(agent.key):
                if link.session is not None:
                    with suppress(UpstreamError):
                        await link.session.unwatch(own)
