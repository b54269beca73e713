"""Makes LMCache report for each prefetch how many keys it loaded from which adapter.

Stock LMCache only counts the loads of all requests together, in the thread that also posts to the coordinator, possibly
seconds after the loads have ended.
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
_MOST_PREFETCHES: Final = 4096


class _Loads:
    """Numbers of loaded keys by prefetch and adapter, for the latest prefetches.

    LMCache publishes two events for every finished load, in succession in the loading thread: first the adapter's
    name, then the number of keys.
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
                if len(self._by_request) > _MOST_PREFETCHES:
                    self._by_request.popitem(last=False)

    def of(self, request_id: int) -> dict[str, int]:
        with self._lock:
            return dict(self._by_request.pop(request_id, {}))


def report_origins() -> None:
    """Add ``cwm_loaded`` to completed prefetches: keys that L1 did not have, by adapter. Call it before LMCache starts."""
    loads = _Loads()
    publish, status = EventBus.publish, PrefetchService.status

    def publish_and_note(bus: EventBus, event: Event) -> None:
        loads.note(event)
        publish(bus, event)

    def status_and_origins(service: PrefetchService, request_id: str) -> dict[str, Any]:
        handle = service._jobs._jobs.get(request_id)  # noqa: SLF001 - read first: status() removes a completed one
        answer: dict[str, Any] = status(service, request_id)
        if handle is not None and answer["status"] == COMPLETED:
            answer[LOADED] = loads.of(handle.prefetch_request_id)
        return answer

    EventBus.publish = publish_and_note
    PrefetchService.status = status_and_origins
