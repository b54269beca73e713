"""Holds vLLM's blocks for as long as LMCache's server may still read them.

The server reads after a step, while vLLM goes on ("LMCache-driven" transfer). vLLM keeps the blocks of finished requests until
then, but not those that a running or preempted request gives up, such as the blocks behind a sliding window: the next step
writes other KV into them, and the server stores it under the key of the old tokens.

The scheduler takes a reference to each block of a store (:class:`HeldBlocks`) and gives it back when every worker has reported the
store (:class:`OpenStores`). A store is over when the server has answered it, or is gone: a server that stands still reads when it
goes on, however late, so that no time limit ends a hold. LMCache itself gives a store up as soon as the server misses two heartbeats.
The share of vLLM's blocks that may be held is limited instead; what finds no room is stored later, or not at all.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SHARE = 0.25
"""Of vLLM's blocks, at most this share is held."""
GONE_SECONDS = 10.0
"""After a connection has broken, as long until its unanswered stores are over. A new server refuses those that reach it: it does
not know the worker yet."""
UNWELL_SECONDS = 30.0
"""LMCache may take as long to notice that its server does not answer."""
AWAKE_SECONDS = 60.0
"""As long, an idle vLLM keeps looking for answers. Later it looks with its next request."""
_NULL = 0
_MODE = "lmcache.mp.mp_transfer_mode"


def reads_after_steps(vllm_config: Any) -> bool:
    """Whether blocks of a store may be read after the step that submitted it. Engine-driven on a CPU, the worker copies in the step."""
    from lmcache.v1.multiprocess.transfer_context.worker_transfer import _resolve_mode
    from lmcache.v1.multiprocess.transfer_mode import MPTransferMode
    from lmcache.v1.platform import get_device_spec

    device = vllm_config.device_config.device_type
    mode = _resolve_mode(vllm_config.kv_transfer_config.get_from_extra_config(_MODE, None))
    if mode is MPTransferMode.AUTO:
        spec = get_device_spec(device)
        mode = MPTransferMode.ENGINE_DRIVEN if spec is None else spec.default_mp_transfer_mode()
    return device != "cpu" or mode is MPTransferMode.LMCACHE_DRIVEN


class SettledStores:
    """What a worker reports: by the number of a hold, how many workers have nothing left to read there."""

    def __init__(self, workers: Mapping[int, int]) -> None:
        self.workers = dict(workers)

    def aggregate(self, other: SettledStores) -> SettledStores:
        """The report of two workers for one step."""
        return SettledStores(Counter(self.workers) + Counter(other.workers))


@dataclass(slots=True)
class _Hold:
    blocks: list[Any]
    since: float
    awaited: int


class HeldBlocks:
    """The scheduler's side. ``workers`` must report each store; ``group_tokens``: tokens per block of each KV group, 0 for none."""

    def __init__(
        self,
        workers: int,
        group_tokens: Sequence[int],
        chunk_tokens: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workers = workers
        self._group_tokens = tuple(group_tokens)
        self._chunk_tokens = chunk_tokens
        self._chunk_blocks = sum(chunk_tokens // tokens for tokens in self._group_tokens if tokens)
        self._now = now
        self._pool: Any = None
        self._blocks_of: dict[int, Any] = {}
        self._limit = 0
        self._numbers = 0
        self._holds: dict[int, _Hold] = {}
        self._references: Counter[int] = Counter()

    def bind(self, manager: Any) -> None:
        """Take vLLM's KV cache manager, once it exists."""
        self._pool = manager.block_pool
        self._blocks_of = {
            each.kv_cache_group_id: each.req_to_blocks for each in manager.coordinator.single_type_managers
        }
        self._limit = int(SHARE * self._pool.num_gpu_blocks)

    @property
    def count(self) -> int:
        """The number of blocks that are held."""
        return len(self._references)

    def has_room(self) -> bool:
        """Whether a chunk more can be held."""
        return self.count + self._chunk_blocks <= self._limit

    def is_waiting(self) -> bool:
        """Whether vLLM has to keep stepping to learn of answers."""
        return any(self._now() - hold.since < AWAKE_SECONDS for hold in self._holds.values())

    def hold(self, metadata: Any, trackers: Mapping[str, Any]) -> None:
        """Hold the blocks of the step's stores, and give the workers their numbers in ``metadata.holds``.

        A store that finds no room is cut down to the chunks that do, and its tracker set back: the rest comes with a later step.
        Blocks that the request no longer has are taken out of the store.
        """
        metadata.holds = {}
        metadata.requests = [
            each
            for each in metadata.requests
            if each.direction != "STORE" or self._is_held(each, metadata.holds, trackers[each.request_id])
        ]

    def settle(self, report: SettledStores) -> None:
        """Give back the blocks of stores that every worker has reported."""
        for number, workers in report.workers.items():
            hold = self._holds.get(number)
            if hold is None:
                continue
            hold.awaited -= workers
            if hold.awaited <= 0:
                del self._holds[number]
                self._release(hold.blocks)

    def _is_held(self, store: Any, holds: dict[str, int], tracker: Any) -> bool:
        op = store.op
        fitting: list[Any] = []
        chunks = 0
        for blocks in self._chunks(store.request_id, op):
            unheld = {id(each) for each in (*fitting, *blocks)} - self._references.keys()
            if self.count + len(unheld) > self._limit:
                break
            fitting += blocks
            chunks += 1
        end = op.start + chunks * self._chunk_tokens
        if end < op.end:
            tracker.num_stored_tokens = end
            op.end = end
            op.block_ids = [
                ids[: chunks * self._chunk_tokens // tokens] if tokens else ids
                for ids, tokens in zip(op.block_ids, self._group_tokens, strict=True)
            ]
        if not chunks:
            return False
        if fitting:
            self._numbers += 1
            self._pool.touch(fitting)
            self._references.update(map(id, fitting))
            self._holds[self._numbers] = _Hold(fitting, self._now(), self._workers)
            holds[store.request_id] = self._numbers
        return True

    def _chunks(self, request_id: str, op: Any) -> Iterator[list[Any]]:
        """The blocks of each chunk of a store."""
        for start in range(op.start, op.end, self._chunk_tokens):
            chunk: list[Any] = []
            for group, tokens in enumerate(self._group_tokens):
                if tokens:
                    chunk += self._present(request_id, op, group, start)
            yield chunk

    def _present(self, request_id: str, op: Any, group: int, start: int) -> list[Any]:
        """The blocks that a group has of the chunk at ``start``. None if one was given up: the chunk's ids are then null ids."""
        tokens = self._group_tokens[group]
        ids = op.block_ids[group]
        first, size = (start - op.start) // tokens, self._chunk_tokens // tokens
        places = range(first, first + size)
        own = self._blocks_of[group].get(request_id, ())
        offset = op.start // tokens
        present = [
            own[offset + place]
            for place in places
            if offset + place < len(own) and own[offset + place].block_id == ids[place] != _NULL
        ]
        if len(present) < sum(ids[place] != _NULL for place in places):
            ids[first : first + size] = [_NULL] * size
            return []
        return present

    def _release(self, blocks: list[Any]) -> None:
        self._references.subtract(map(id, blocks))
        for each in blocks:
            if self._references[id(each)] <= 0:
                del self._references[id(each)]
        # The last ones first, as vLLM does: it evicts in this order.
        self._pool.free_blocks(reversed(blocks))


@dataclass(slots=True)
class _Store:
    future: Any
    since: float


class OpenStores:
    """A worker's side: which of its stores the server has not answered yet."""

    def __init__(self, adapter: Any, now: Callable[[], float] = time.monotonic) -> None:
        self._adapter = adapter
        self._now = now
        self._numbers: dict[str, int] = {}
        self._open: dict[int, _Store] = {}
        self._settled: Counter[int] = Counter()
        self._lost_at = -math.inf
        self._well_at = now()
        self._submit = adapter.submit_store_request
        adapter.submit_store_request = self._submit_and_watch
        self._listen_for_loss()

    def begin(self, holds: Mapping[str, int]) -> None:
        """The holds of the stores that are now submitted, by the ids of their requests."""
        self._numbers = dict(holds)

    def end(self) -> None:
        """Every store is submitted: one that was not is over."""
        self._settled.update(self._numbers.values())
        self._numbers = {}

    def take(self) -> SettledStores | None:
        """The stores that are over since the last call; None without any."""
        if self._adapter.is_healthy:
            self._well_at = self._now()
        for number, store in list(self._open.items()):
            if self._is_over(store):
                del self._open[number]
                self._settled[number] += 1
        if not self._settled:
            return None
        report, self._settled = SettledStores(self._settled), Counter()
        return report

    def _submit_and_watch(self, request_id: str, *args: Any, **kwargs: Any) -> None:
        # LMCache keeps one store for each request, the last.
        earlier = self._adapter.store_futures.get(request_id)
        self._submit(request_id, *args, **kwargs)
        future = self._adapter.store_futures.get(request_id)
        if future is not None and future is not earlier and request_id in self._numbers:
            self._open[self._numbers.pop(request_id)] = _Store(future, self._now())

    def _is_over(self, store: _Store) -> bool:
        try:
            if store.future.query():
                return True
        except Exception:  # noqa: BLE001 - however it failed, it has been answered
            return True
        patient = self._now() - GONE_SECONDS
        return store.since < self._lost_at < patient or (self._is_gone() and store.since < patient)

    def _is_gone(self) -> bool:
        """Whether the server died and no other has taken its place: then nobody reads what was sent since."""
        return not self._adapter.is_healthy and self._lost_at > self._well_at - UNWELL_SECONDS

    def _listen_for_loss(self) -> None:
        """LMCache's client tells itself when its connection breaks. A server that only stands still keeps its connections."""
        client = getattr(self._adapter.req_client, "_message_queue_client", None)
        if client is None:
            return
        cancel = client.cancel_streams

        def note_and_cancel() -> None:
            self._lost_at = self._now()
            cancel()

        client.cancel_streams = note_and_cancel
