"""The configured upstreams: started, replaced and closed as the configuration changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from cwm.background import BackgroundTasks
from cwm.domain.upstream import OfferKind, UpstreamSpec
from cwm.ports.changes import Changes
from cwm.ports.clock import Clock
from cwm.ports.upstream import UpstreamConnector
from cwm.services.agents.agents import Agents
from cwm.services.upstreams.agent_links import links_of
from cwm.services.upstreams.link import Link
from cwm.services.upstreams.listening import Find, Listening, Tell
from cwm.services.upstreams.news import News
from cwm.services.upstreams.tool_watch import ToolWatch

_log = logging.getLogger("cwm.upstream")


class Roster:
    """``links``: the upstreams by name. ``background``: the changes under way."""

    def __init__(
        self,
        connector: UpstreamConnector,
        agents: Agents,
        changes: Changes,
        clock: Clock,
        find: Find,
        tell: Tell,
        watch: ToolWatch | None,
    ) -> None:
        self._watch = watch
        self._connector = connector
        self._agents = agents
        self._clock = clock
        self.links: dict[str, Link] = {}
        self.background = BackgroundTasks()
        self.news = News(changes, self.background)
        self.listening = Listening(self.links, agents, find, tell, self.news.hearing)
        self._coming: dict[str, Link] = {}
        self._on_other: list[Callable[[str], Awaitable[None]]] = []

    def at_other(self, hook: Callable[[str], Awaitable[None]]) -> None:
        """Register a hook; called with the name of every upstream that was replaced or removed."""
        self._on_other.append(hook)

    def configure(self, specs: Iterable[UpstreamSpec]) -> None:
        """Replace the set of upstreams; connects and disconnects in the background."""
        specs_by_name = {spec.name: spec for spec in specs}
        for name in self.links.keys() - specs_by_name.keys():
            self._displace(name)
            self._retire(self.links.pop(name))
            self.background.start(self._run_hooks(name))
        for name, spec in specs_by_name.items():
            link = self.links.get(name)
            if link is None:
                self.links[name] = new = self._started(spec)
                self.listening.take_up(new)
            elif self._coming.get(name, link).spec != spec:
                self._displace(name)
                if link.spec != spec:
                    self._coming[name] = new = self._started(spec)
                    self.background.start(self._replace(link, new))

    async def aclose(self) -> None:
        links = [*self.links.values(), *self._coming.values()]
        self.links.clear()
        self._coming.clear()
        for link in links:
            self._retire(link)
        await self.background.settled()

    def _started(self, spec: UpstreamSpec) -> Link:
        link = Link(spec, self._connector, self._clock, partial(self.news.hear, spec.name), self._watch)
        link.start()
        return link

    async def _replace(self, old: Link, new: Link) -> None:
        """Replace a link once the new one's state is known; the old one serves until then."""
        name = old.spec.name
        await new.settled()
        if self._coming.get(name) is not new:
            return
        del self._coming[name]
        self.links[name] = new
        self.listening.hand_over(old, new)
        self._retire(old)
        await self._run_hooks(name)

    async def _run_hooks(self, name: str) -> None:
        for hook in self._on_other:
            await hook(name)
        self.news.changed(OfferKind)

    def _displace(self, name: str) -> None:
        """Close a replacement that has not taken over yet, because the configuration changed again."""
        if (replacement := self._coming.pop(name, None)) is not None:
            self._retire(replacement)

    def _retire(self, link: Link) -> None:
        self.listening.stop(link)

        async def retire() -> None:
            await link.idle.wait()
            releasing = [links_of(agent).release(link) for agent in self._agents]
            for result in await asyncio.gather(link.aclose(), *releasing, return_exceptions=True):
                if isinstance(result, Exception):
                    _log.error("a session with upstream %s was not closed", link.spec.name, exc_info=result)

        self.background.start(retire())
