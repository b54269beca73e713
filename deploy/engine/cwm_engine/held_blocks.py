"""Holds vLLM's blocks for as long as LMCache's server may still read or write them.

The server works after a step, while vLLM goes on ("LMCache-driven" transfer). What it reads for a store, vLLM keeps for finished
requests, but not what a running or preempted request gives up, such as the blocks behind a sliding window: the next step writes other
KV into them, and the server stores it under the key of the old tokens. What it writes for a load, vLLM keeps until LMCache gives the load
up: from then on another request may have the blocks, and the server writes old KV into them.

The scheduler takes a reference to each block of a transfer (:class:`HeldBlocks`) and gives it back when every worker has reported the
transfer (:class:`OpenTransfers`). It is over when the server has answered it, or is gone: a server that stands still reads and writes
when it goes on, however late, so that no time limit ends a hold. LMCache itself gives up as soon as the server misses two heartbeats.
The share of vLLM's blocks that stores may hold is limited instead; what finds no room is stored later, or not at all. A load holds what
its request has anyway, and none begins once LMCache counts its server as unwell.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

SHARE = 0.25
"""Of vLLM's blocks, stores hold at most this share."""
GONE_SECONDS = 10.0
"""After a connection has broken, as long until its unanswered transfers are over. A new server refuses those that reach it: it does
not know the worker yet."""
UNWELL_SECONDS = 30.0
"""LMCache may take as long to notice that its server does not answer."""
AWAKE_SECONDS = 60.0
"""As long, an idle vLLM keeps looking for answers. Later it looks with its next request."""
_NULL = 0
_MODE = "lmcache.mp.mp_transfer_mode"


def works_after_steps(vllm_config: Any) -> bool:
    """Whether the server works after the step that submitted a transfer. Engine-driven on a CPU, the worker copies in the step."""
    from lmcache.v1.multiprocess.transfer_context.worker_transfer import _resolve_mode
    from lmcache.v1.multiprocess.transfer_mode import MPTransferMode
    from lmcache.v1.platform import get_device_spec

    device = vllm_config.device_config.device_type
    mode = _resolve_mode(vllm_config.kv_transfer_config.get_from_extra_config(_MODE, None))
    if mode is MPTransferMode.AUTO:
        spec = get_device_spec(device)
        mode = MPTransferMode.ENGINE_DRIVEN if spec is None else spec.default_mp_transfer_mode()
    return device != "cpu" or mode is MPTransferMode.LMCACHE_DRIVEN


class SettledTransfers:
    """What a worker reports: by the number of a hold, for how many workers nothing is left to read or write there."""

    def __init__(self, workers: Mapping[int, int]) -> None:
        self.workers = dict(workers)

    def aggregate(self, other: SettledTransfers) -> SettledTransfers:
        """The report of two workers for one step."""
        return SettledTransfers(Counter(self.workers) + Counter(other.workers))


@dataclass(slots=True)
class _Hold:
    blocks: list[Any]
    since: float
    awaited: int
    is_store: bool


class HeldBlocks:
    """The scheduler's side. ``workers`` must report each transfer; ``group_tokens``: tokens per block of each KV group, 0 for none."""

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
        self._stored: Counter[int] = Counter()

    def bind(self, manager: Any) -> None:
        """Take vLLM's KV cache manager, once it exists."""
        self._pool = manager.block_pool
        self._blocks_of = {
            each.kv_cache_group_id: each.req_to_blocks for each in manager.coordinator.single_type_managers
        }
        self._limit = int(SHARE * self._pool.num_gpu_blocks)

    @property
    def count(self) -> int:
        """The number of blocks that are held for stores."""
        return len(self._stored)

    def has_room(self) -> bool:
        """Whether a chunk more can be held."""
        return self.count + self._chunk_blocks <= self._limit

    def is_waiting(self) -> bool:
        """Whether vLLM has to keep stepping to learn of answers."""
        return any(self._now() - hold.since < AWAKE_SECONDS for hold in self._holds.values())

    def hold(self, metadata: Any, trackers: Mapping[str, Any]) -> None:
        """Hold the blocks of the step's transfers, and give the workers their numbers in ``metadata.holds`` and ``metadata.load_holds``.

        A store that finds no room is cut down to the chunks that do, and its tracker set back: the rest comes with a later step.
        Blocks that the request no longer has are taken out of the store.
        """
        metadata.holds, metadata.load_holds = {}, {}
        for each in metadata.requests:
            if each.direction == "RETRIEVE":
                self._hold(self._destinations(each), each, metadata.load_holds)
        metadata.requests = [
            each
            for each in metadata.requests
            if each.direction != "STORE" or self._is_held(each, metadata.holds, trackers[each.request_id])
        ]

    def settle(self, report: SettledTransfers) -> None:
        """Give back the blocks of transfers that every worker has reported."""
        for number, workers in report.workers.items():
            hold = self._holds.get(number)
            if hold is None:
                continue
            hold.awaited -= workers
            if hold.awaited <= 0:
                del self._holds[number]
                self._release(hold)

    def _is_held(self, store: Any, holds: dict[str, int], tracker: Any) -> bool:
        op = store.op
        fitting: list[Any] = []
        chunks = 0
        for blocks in self._chunks(store.request_id, op):
            unheld = {id(each) for each in (*fitting, *blocks)} - self._stored.keys()
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
        self._hold(fitting, store, holds)
        return True

    def _hold(self, blocks: list[Any], transfer: Any, holds: dict[str, int]) -> None:
        if not blocks:
            return
        is_store = transfer.direction == "STORE"
        self._numbers += 1
        self._pool.touch(blocks)
        if is_store:
            self._stored.update(map(id, blocks))
        self._holds[self._numbers] = _Hold(blocks, self._now(), self._workers, is_store)
        holds[transfer.request_id] = self._numbers

    def _destinations(self, load: Any) -> list[Any]:
        """The blocks that a load writes."""
        return [
            block
            for group, wanted in enumerate(map(frozenset, load.op.block_ids))
            if self._group_tokens[group]
            for block in self._blocks_of[group].get(load.request_id, ())
            if block.block_id in wanted and block.block_id != _NULL
        ]

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

    def _release(self, hold: _Hold) -> None:
        if hold.is_store:
            # Without what has become zero.
            self._stored.subtract(map(id, hold.blocks))
            self._stored = +self._stored
        # The last ones first, as vLLM does: it evicts in this order.
        self._pool.free_blocks(reversed(hold.blocks))


@dataclass(slots=True)
class _Transfer:
    future: Any
    since: float


class OpenTransfers:
    """A worker's side: which of its stores and loads the server has not answered yet."""

    def __init__(self, adapter: Any, now: Callable[[], float] = time.monotonic) -> None:
        self._adapter = adapter
        self._now = now
        self._numbers: dict[str, int] = {}
        self._open: dict[int, _Transfer] = {}
        self._settled: Counter[int] = Counter()
        self._lost_at = -math.inf
        self._well_at = now()
        adapter.submit_store_request = self._watched(adapter.submit_store_request, self._store_of)
        adapter.submit_retrieve_request = self._watched(adapter.submit_retrieve_request, self._load_of)
        self._listen_for_loss()

    @contextmanager
    def submitting(self, holds: Mapping[str, int]) -> Iterator[None]:
        """The transfers that are submitted meanwhile have these holds, by the ids of their requests. One that is not submitted is over."""
        self._numbers = dict(holds)
        try:
            yield
        finally:
            self._settled.update(self._numbers.values())
            self._numbers = {}

    def take(self) -> SettledTransfers | None:
        """The transfers that are over since the last call; None without any."""
        if self._adapter.is_healthy:
            self._well_at = self._now()
        for number, transfer in list(self._open.items()):
            if self._is_over(transfer):
                del self._open[number]
                self._settled[number] += 1
        if not self._settled:
            return None
        report, self._settled = SettledTransfers(self._settled), Counter()
        return report

    def _store_of(self, request_id: str) -> Any:
        return self._adapter.store_futures.get(request_id)

    def _load_of(self, request_id: str) -> Any:
        future, _ = self._adapter.retrieve_futures.get(request_id, (None, ()))
        return future

    def _watched(self, submit: Callable[..., None], future_of: Callable[[str], Any]) -> Callable[..., None]:
        def submit_and_watch(request_id: str, *args: Any, **kwargs: Any) -> None:
            # LMCache keeps one store and one load for each request, the last.
            earlier = future_of(request_id)
            submit(request_id, *args, **kwargs)
            future = future_of(request_id)
            if future is not None and future is not earlier and request_id in self._numbers:
                self._open[self._numbers.pop(request_id)] = _Transfer(future, self._now())

        return submit_and_watch

    def _is_over(self, transfer: _Transfer) -> bool:
        try:
            if transfer.future.query():
                return True
        except Exception:  # noqa: BLE001 - however it failed, it has been answered
            return True
        patient = self._now() - GONE_SECONDS
        return transfer.since < self._lost_at < patient or (self._is_gone() and transfer.since < patient)

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
