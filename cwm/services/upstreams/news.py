"""Passes notifications of upstreams on to the agent sessions they concern."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from cwm.background import BackgroundTasks
from cwm.domain.changes import Change, ChangeKind
from cwm.domain.upstream import OfferKind
from cwm.domain.upstream_uris import exposed_uri
from cwm.ports.changes import Changes
from cwm.ports.upstream import Heard
from cwm.services.agents.context_manager import ContextManager
from cwm.services.upstreams.agent_links import links_of
from cwm.services.upstreams.link import Link

_CHANGES: Final = {
    OfferKind.TOOLS: ChangeKind.TOOLS,
    OfferKind.PROMPTS: ChangeKind.PROMPTS,
    OfferKind.RESOURCES: ChangeKind.RESOURCES,
    OfferKind.TEMPLATES: ChangeKind.RESOURCES,
}


class News:
    """Publishes to other replicas in ``background``."""

    def __init__(self, changes: Changes, background: BackgroundTasks) -> None:
        self._changes = changes
        self._background = background

    def hearing(self, link: Link, agent: ContextManager) -> Heard:
        """The callback for notifications in an agent session's own upstream session."""

        def on_news(news: OfferKind | str) -> None:
            if not isinstance(news, OfferKind):
                uri = exposed_uri(link.spec.name, news)
                self._publish_to(agent, Change(ChangeKind.RESOURCE, uri))
            elif link.by_caller:
                links_of(agent).outdated(link, news)
                self.changed_for(agent, news)
            else:
                # Some upstreams notify only the session in which the change happened.
                link.hear(news)

        return on_news

    def hear(self, upstream: str, news: OfferKind | str) -> None:
        """Handle a notification that concerns all callers."""
        if isinstance(news, OfferKind):
            self.changed([news])
        else:
            self._publish(Change(ChangeKind.RESOURCE, exposed_uri(upstream, news)))

    def changed(self, kinds: Iterable[OfferKind]) -> None:
        """Notify this process only: every replica gets the notification from the upstream, or lists again."""
        for kind in dict.fromkeys(_CHANGES[kind] for kind in kinds):
            self._changes.tell(Change(kind))

    def changed_for(self, agent: ContextManager, kind: OfferKind) -> None:
        """Notify one agent session that a kind of offers changed for it."""
        self._publish_to(agent, Change(_CHANGES[kind]))

    def _publish_to(self, agent: ContextManager, change: Change) -> None:
        """Publish to one agent session only: the change happened in its own upstream session."""
        key, tenant = agent.key, agent.principal.tenant
        self._publish(replace(change, agent_session=key, tenant=tenant, private_to=key))

    def _publish(self, change: Change) -> None:
        self._background.start(self._changes.publish(change))
