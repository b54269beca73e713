"""Has LMCache say of a prefetch how many of its chunks it loaded from which adapter.

As published it only counts: the loads of everybody together, in the one thread that also posts to the coordinator, which
may be seconds after they have ended.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from typing import Any, Final

from lmcache.v1.mp_observability.event import Event, EventType
from lmcache.v1.mp_observability.event_bus import EventBus
from lmcache.v1.multiprocess.cache_control.prefetch_service import PrefetchService
from lmcache.v1.multiprocess.warm_prefetch import COMPLETED

LOADED: Final = "cwm_loaded"
_KEPT: Final = 4096


class _Loads:
    """Keys loaded by prefetch and adapter, of the latest prefetches.

    LMCache tells of every load that ended in two events, one after the other in the one thread that loads: the adapter's name
    first, then how many keys it gave.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_request: OrderedDict[int, Counter[str]] = OrderedDict()
        self._adapter: tuple[int, str] | None = None

    def note(self, event: Event) -> None:
        if event.event_type is EventType.L2_LOAD_TASK_COMPLETED:
            self._adapter = (event.metadata["request_id"], event.metadata["l2_name"])
        elif event.event_type is EventType.L2_PREFETCH_LOAD_COMPLETED and self._adapter is not None:
            request_id, name = self._adapter
            with self._lock:
                self._by_request.setdefault(request_id, Counter())[name] += event.metadata["loaded_count"]
                if len(self._by_request) > _KEPT:
                    self._by_request.popitem(last=False)

    def of(self, request_id: int) -> dict[str, int]:
        with self._lock:
            return dict(self._by_request.pop(request_id, {}))


def tell_origins() -> None:
    """Before LMCache starts: a completed prefetch has ``cwm_loaded``, its keys that L1 did not have by adapter."""
    loads = _Loads()
    publish, status = EventBus.publish, PrefetchService.status

    def publish_and_note(bus: EventBus, event: Event) -> None:
        loads.note(event)
        publish(bus, event)

    def status_and_origins(service: PrefetchService, request_id: str) -> dict[str, Any]:
        handle = service._jobs._jobs.get(request_id)  # noqa: SLF001 - completed, it is gone from there
        told: dict[str, Any] = status(service, request_id)
        if handle is not None and told["status"] == COMPLETED:
            told[LOADED] = loads.of(handle.prefetch_request_id)
        return told

    EventBus.publish = publish_and_note
    PrefetchService.status = status_and_origins
