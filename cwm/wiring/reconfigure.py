"""Callbacks that apply a changed ``cwm.yaml`` to a running gateway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from cwm.adapters.telemetry.logging import set_level
from cwm.services.contents.cache import ContentCache
from cwm.services.context.views import ContextViews
from cwm.services.results.delivery import Delivery
from cwm.services.upstreams.shared_answers import SharedAnswers
from cwm.services.upstreams.upstreams import Upstreams
from cwm.settings import Settings
from cwm.wiring.shared_context import bytes_for_keys

Reconfigure: TypeAlias = Callable[[Settings], Awaitable[None]]


async def set_log_level(settings: Settings) -> None:
    set_level(settings.logging.log_level)


def set_upstreams(upstreams: Upstreams) -> Reconfigure:
    async def configure(settings: Settings) -> None:
        await upstreams.configure(settings.upstreams)

    return configure


def set_context(cache: ContentCache, views: ContextViews) -> Reconfigure:
    async def configure(settings: Settings) -> None:
        views.resize(bytes_for_keys(settings.context))
        cache.reconfigure(settings.context.memory_bytes(), settings.context.context_eviction)

    return configure


def set_budgets(delivery: Delivery, answers: SharedAnswers) -> Reconfigure:
    async def configure(settings: Settings) -> None:
        delivery.configure(settings.budgets)
        await answers.configure(settings.budgets.policies)

    return configure
