"""Has LMCache count what it loaded before it says that it did.

LMCache counts in the order of its events, in the one thread that also posts them to the coordinator: a load may be
counted seconds after it has ended, while its gauge of that queue is of a bus that nothing uses and stays 0.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Final
from weakref import WeakKeyDictionary

from lmcache.logging import init_logger
from lmcache.v1.mp_observability.event import Event, EventType
from lmcache.v1.mp_observability.event_bus import EventBus, EventCallback
from lmcache.v1.mp_observability.otel_init import register_gauge

_AT_ONCE: Final = frozenset(
    {
        EventType.L2_LOAD_TASK_SUBMITTED,
        EventType.L2_LOAD_TASK_COMPLETED,
        EventType.L2_PREFETCH_LOAD_COMPLETED,
    }
)
"""What only counters subscribe to, published by the one thread that loads."""

_log = init_logger(__name__)


def count_at_once() -> None:
    """Before LMCache starts. ``cwm_loads_counted_at_once`` in its metrics says so."""
    counters: WeakKeyDictionary[EventBus, dict[EventType, list[EventCallback]]] = WeakKeyDictionary()
    subscribe, publish = EventBus.subscribe, EventBus.publish

    def subscribe_at_once(bus: EventBus, event_type: EventType, callback: EventCallback) -> None:
        subscribe(bus, event_type, callback)
        if event_type in _AT_ONCE:
            counters.setdefault(bus, defaultdict(list))[event_type].append(callback)

    def publish_at_once(bus: EventBus, event: Event) -> None:
        if event.event_type not in _AT_ONCE or not bus.enabled:
            publish(bus, event)
            return
        event.timestamp = time.time()
        for callback in counters.get(bus, {}).get(event.event_type, ()):
            try:
                callback(event)
            except Exception:  # noqa: BLE001 - a counter must not fail a load
                _log.exception("a counter of %s failed", event.event_type.value)

    EventBus.subscribe = subscribe_at_once
    EventBus.publish = publish_at_once
    register_gauge(
        "cwm", "cwm.loads_counted_at_once", "1: a load that LMCache answered is in its counters.", lambda: 1
    )
