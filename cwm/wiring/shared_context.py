"""Builds shared context and the content store that it and stored results use."""

from __future__ import annotations

from cwm.ports.audit import AuditLog
from cwm.ports.clock import Clock
from cwm.ports.meter import Meter
from cwm.ports.tracing import Tracer
from cwm.services.contents.cache import ContentCache
from cwm.services.contents.contents import SharedContents
from cwm.services.context.requests import ContextLimits
from cwm.services.context.shared_context import SharedContext
from cwm.services.context.views import ContextViews
from cwm.settings import Context, Settings
from cwm.wiring.shared_store import SharedStore


def shared_contents(
    settings: Settings, shared: SharedStore, audit: AuditLog, meter: Meter, clock: Clock
) -> SharedContents:
    context = settings.context
    return SharedContents(
        store=shared.contents,
        cache=ContentCache(context.memory_bytes(), context.context_eviction),
        changes=shared.changes,
        audit=audit,
        meter=meter,
        clock=clock,
        compress_above=context.context_compress_bytes,
        quota_bytes=context.quota_bytes(),
    )


def shared_context(
    settings: Settings,
    shared: SharedStore,
    contents: SharedContents,
    meter: Meter,
    clock: Clock,
    tracer: Tracer,
) -> SharedContext:
    context = settings.context
    views = ContextViews(shared.context, bytes_for_keys(context), contents.cache.reserve)
    limits = ContextLimits(
        value_bytes=context.context_value_kb * 1024,
        versions=context.context_versions,
        snapshots=context.context_snapshots,
        ttl_seconds=context.context_ttl_seconds,
    )
    return SharedContext(
        index=shared.context,
        contents=contents,
        views=views,
        changes=shared.changes,
        meter=meter,
        clock=clock,
        limits=limits,
        quota_bytes=context.quota_bytes(),
        tracer=tracer,
    )


def bytes_for_keys(context: Context) -> int:
    """At most half of the memory holds the list of keys; the rest holds their values."""
    return context.memory_bytes() // 2
