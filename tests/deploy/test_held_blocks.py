"""Which of vLLM's blocks are held for LMCache, and until when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tests.deploy.modules import held_blocks

_CHUNK = 64
# One group of all tokens, one that keeps a window of them.
_GROUPS = (64, 32)


@dataclass
class Block:
    block_id: int
    references: int = 1


@dataclass
class Pool:
    """Counts references as vLLM's does."""

    num_gpu_blocks: int = 100
    free: list[int] = field(default_factory=list)

    def touch(self, blocks: Iterable[Block]) -> None:
        for each in blocks:
            each.references += 1

    def free_blocks(self, blocks: Iterable[Block]) -> None:
        for each in blocks:
            each.references -= 1
            if not each.references:
                self.free.append(each.block_id)


class Scheduler:
    """vLLM's side of a request: its blocks, and the stores that LMCache makes of them."""

    def __init__(self, *, workers: int = 1, pool_blocks: int = 100) -> None:
        self.pool = Pool(pool_blocks)
        self.now = 0.0
        self.groups: list[dict[str, list[Block]]] = [{}, {}]
        self.held = held_blocks.HeldBlocks(workers, _GROUPS, _CHUNK, now=lambda: self.now)
        managers = [
            SimpleNamespace(kv_cache_group_id=number, req_to_blocks=own)
            for number, own in enumerate(self.groups)
        ]
        coordinator = SimpleNamespace(single_type_managers=managers)
        self.held.bind(SimpleNamespace(block_pool=self.pool, coordinator=coordinator))
        self.trackers: dict[str, Any] = {}

    def begin(self, request_id: str, tokens: int) -> None:
        ids = iter(range(1 + 100 * len(self.trackers), 1000))
        for own, size in zip(self.groups, _GROUPS, strict=True):
            own[request_id] = [Block(next(ids)) for _ in range(tokens // size)]
        self.trackers[request_id] = SimpleNamespace(num_stored_tokens=0)

    def give_up(self, request_id: str, group: int, place: int) -> Block:
        """A block behind the window."""
        block = self.groups[group][request_id][place]
        self.groups[group][request_id][place] = Block(0)
        self.pool.free_blocks([block])
        return block

    def store(self, request_id: str, start: int, end: int) -> Any:
        """The step's metadata with a store of these tokens."""
        ids = [
            [each.block_id for each in own[request_id][start // size : end // size]]
            for own, size in zip(self.groups, _GROUPS, strict=True)
        ]
        return self.step(request_id, start, end, ids)

    def load(self, request_id: str, end: int) -> Any:
        """The step's metadata with a load of the tokens up to ``end``."""
        ids = [
            [each.block_id for each in own[request_id][: end // size]]
            for own, size in zip(self.groups, _GROUPS, strict=True)
        ]
        return self.step(request_id, 0, end, ids, direction="RETRIEVE")

    def end(self, request_id: str) -> None:
        """The request has ended, or its load was given up: vLLM frees its blocks."""
        for own in self.groups:
            self.pool.free_blocks(own.pop(request_id))

    def step(
        self, request_id: str, start: int, end: int, ids: list[list[int]], direction: str = "STORE"
    ) -> Any:
        self.trackers[request_id].num_stored_tokens = end
        op = SimpleNamespace(start=start, end=end, block_ids=ids)
        metadata = SimpleNamespace(
            requests=[SimpleNamespace(request_id=request_id, direction=direction, op=op)]
        )
        self.held.hold(metadata, self.trackers)
        return metadata

    def settle(self, *numbers: int) -> None:
        self.held.settle(held_blocks.SettledTransfers(dict.fromkeys(numbers, 1)))


def test_a_block_that_its_request_gives_up_is_free_when_the_server_has_read_it() -> None:
    scheduler = Scheduler()
    scheduler.begin("r", 2 * _CHUNK)
    number = scheduler.store("r", 0, 2 * _CHUNK).holds["r"]
    block = scheduler.give_up("r", 1, 0)
    assert (scheduler.pool.free, scheduler.held.count) == ([], 6)
    scheduler.settle(number)
    assert (scheduler.pool.free, scheduler.held.count) == ([block.block_id], 0)


def test_every_worker_must_have_answered() -> None:
    scheduler = Scheduler(workers=3)
    scheduler.begin("r", _CHUNK)
    number = scheduler.store("r", 0, _CHUNK).holds["r"]
    scheduler.settle(number)
    report = held_blocks.SettledTransfers({number: 1})
    assert scheduler.held.count == 3
    scheduler.held.settle(report.aggregate(held_blocks.SettledTransfers({number: 1})))
    assert scheduler.held.count == 0
    scheduler.held.settle(report)


def test_two_stores_of_the_same_blocks_hold_them_until_both_are_over() -> None:
    scheduler = Scheduler()
    scheduler.begin("r", _CHUNK)
    first = scheduler.store("r", 0, _CHUNK).holds["r"]
    second = scheduler.store("r", 0, _CHUNK).holds["r"]
    scheduler.settle(first)
    assert scheduler.held.count == 3
    scheduler.settle(second)
    assert scheduler.held.count == 0
    assert {each.references for own in scheduler.groups for each in own["r"]} == {1}


def test_what_finds_no_room_is_stored_later() -> None:
    scheduler = Scheduler(pool_blocks=40)
    scheduler.begin("r", 5 * _CHUNK)
    metadata = scheduler.store("r", 0, 5 * _CHUNK)
    op = metadata.requests[0].op
    assert (op.end, [len(ids) for ids in op.block_ids]) == (3 * _CHUNK, [3, 6])
    assert scheduler.trackers["r"].num_stored_tokens == 3 * _CHUNK
    assert not scheduler.held.has_room()
    assert scheduler.store("r", 3 * _CHUNK, 5 * _CHUNK).requests == []
    assert scheduler.trackers["r"].num_stored_tokens == 3 * _CHUNK
    scheduler.settle(metadata.holds["r"])
    assert scheduler.held.has_room()
    assert scheduler.store("r", 3 * _CHUNK, 5 * _CHUNK).requests[0].op.end == 5 * _CHUNK


def test_blocks_that_are_gone_are_taken_out_of_a_store_with_their_chunk() -> None:
    scheduler = Scheduler()
    scheduler.begin("r", 2 * _CHUNK)
    ids = [[each.block_id for each in own["r"]] for own in scheduler.groups]
    scheduler.give_up("r", 1, 0)
    op = scheduler.step("r", 0, 2 * _CHUNK, [list(each) for each in ids]).requests[0].op
    assert op.block_ids == [ids[0], [0, 0, *ids[1][2:]]]
    assert scheduler.held.count == 4


def test_blocks_of_a_load_that_was_given_up_are_free_when_the_server_has_written_them() -> None:
    scheduler = Scheduler()
    scheduler.begin("r", 3 * _CHUNK)
    metadata = scheduler.load("r", 2 * _CHUNK)
    assert (metadata.holds, [each.direction for each in metadata.requests]) == ({}, ["RETRIEVE"])
    loaded = [
        each.block_id for own, size in zip(scheduler.groups, (2, 4), strict=True) for each in own["r"][:size]
    ]
    scheduler.end("r")
    assert not {*loaded} & {*scheduler.pool.free}
    assert scheduler.held.is_waiting()
    scheduler.settle(metadata.load_holds["r"])
    assert {*loaded} <= {*scheduler.pool.free}
    assert not scheduler.held.is_waiting()


def test_loads_take_no_room_from_stores() -> None:
    scheduler = Scheduler(pool_blocks=40)
    scheduler.begin("r", 5 * _CHUNK)
    scheduler.load("r", 5 * _CHUNK)
    assert scheduler.held.has_room()
    scheduler.begin("s", 3 * _CHUNK)
    assert scheduler.store("s", 0, 3 * _CHUNK).requests[0].op.end == 3 * _CHUNK


def test_vllm_keeps_looking_for_answers_for_a_minute() -> None:
    scheduler = Scheduler()
    assert not scheduler.held.is_waiting()
    scheduler.begin("r", _CHUNK)
    number = scheduler.store("r", 0, _CHUNK).holds["r"]
    assert scheduler.held.is_waiting()
    scheduler.now = held_blocks.AWAKE_SECONDS
    assert (scheduler.held.is_waiting(), scheduler.held.count) == (False, 3)
    scheduler.settle(number)
    assert scheduler.held.count == 0


class Future:
    def __init__(self) -> None:
        self.answer: bool | Exception = False

    def query(self) -> bool:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Adapter:
    """LMCache's: it keeps the last future of each request, and forgets all when its server seems unwell."""

    def __init__(self) -> None:
        self.store_futures: dict[str, Future] = {}
        self.retrieve_futures: dict[str, tuple[Future, list[int]]] = {}
        self.lost = 0
        client = SimpleNamespace(cancel_streams=self._lose)
        self.req_client = SimpleNamespace(_message_queue_client=client)
        self.is_healthy = True

    def _lose(self) -> None:
        self.lost += 1

    def submit_store_request(self, request_id: str, op: object, event: object, cache_salt: str = "") -> None:
        if self.is_healthy:
            self.store_futures[request_id] = Future()

    def submit_retrieve_request(
        self, request_id: str, op: object, event: object, cache_salt: str = ""
    ) -> None:
        if self.is_healthy:
            self.retrieve_futures[request_id] = (Future(), [])


class Worker:
    def __init__(self) -> None:
        self.now = 0.0
        self.adapter = Adapter()
        self.open = held_blocks.OpenTransfers(self.adapter, now=lambda: self.now)

    def submit(self, request_id: str, number: int) -> Future | None:
        with self.open.submitting({request_id: number}):
            self.adapter.submit_store_request(request_id, None, None, cache_salt="s")
        return self.adapter.store_futures.get(request_id)

    def load(self, request_id: str, number: int) -> Future | None:
        with self.open.submitting({request_id: number}):
            self.adapter.submit_retrieve_request(request_id, None, None, cache_salt="s")
        return self.adapter.retrieve_futures.get(request_id, (None, []))[0]

    def over(self) -> dict[int, int]:
        report = self.open.take()
        return {} if report is None else dict(report.workers)


@pytest.mark.parametrize("answer", [True, RuntimeError("the store failed")])
def test_a_store_is_over_when_it_is_answered(answer: bool | Exception) -> None:
    worker = Worker()
    future = worker.submit("r", 7)
    assert future is not None
    assert worker.over() == {}
    future.answer = answer
    assert worker.over() == {7: 1}
    assert worker.over() == {}


def test_two_stores_of_a_request_are_told_apart() -> None:
    worker = Worker()
    first, second = worker.submit("r", 1), worker.submit("r", 2)
    assert first is not None
    assert second is not None
    second.answer = True
    assert worker.over() == {2: 1}
    first.answer = True
    assert worker.over() == {1: 1}


def test_a_store_that_is_not_submitted_is_over() -> None:
    worker = Worker()
    worker.adapter.is_healthy = False
    worker.submit("r", 3)
    assert worker.over() == {3: 1}


def test_a_store_that_lmcache_gave_up_is_not_over() -> None:
    worker = Worker()
    future = worker.submit("r", 4)
    worker.adapter.store_futures.clear()
    worker.now = 1e6
    assert future is not None
    assert worker.over() == {}
    future.answer = True
    assert worker.over() == {4: 1}


def test_a_load_that_lmcache_gave_up_is_over_when_the_server_has_answered_it() -> None:
    worker = Worker()
    store, load = worker.submit("r", 4), worker.load("r", 5)
    worker.adapter.retrieve_futures.clear()
    assert load is not None
    assert store is not None
    assert worker.over() == {}
    load.answer = True
    assert worker.over() == {5: 1}
    store.answer = True
    assert worker.over() == {4: 1}


def test_a_load_that_is_not_submitted_is_over() -> None:
    worker = Worker()
    worker.adapter.is_healthy = False
    worker.load("r", 3)
    assert worker.over() == {3: 1}


def test_a_server_that_is_gone_answers_no_store_any_more() -> None:
    worker = Worker()
    worker.submit("r", 5)
    worker.now = 1.0
    worker.adapter.req_client._message_queue_client.cancel_streams()
    worker.now = 2.0
    worker.submit("later", 6)
    assert (worker.adapter.lost, worker.over()) == (1, {})
    worker.now = 1.5 + held_blocks.GONE_SECONDS
    assert worker.over() == {5: 1}


def test_what_is_sent_to_a_server_that_is_gone_keeps_no_blocks() -> None:
    worker = Worker()
    worker.adapter.req_client._message_queue_client.cancel_streams()
    worker.now = 1.0
    worker.submit("r", 8)
    worker.now = 2.0 + held_blocks.GONE_SECONDS
    assert worker.over() == {}
    worker.adapter.is_healthy = False
    assert worker.over() == {8: 1}


def test_a_server_that_stands_still_after_a_restart_is_not_gone() -> None:
    worker = Worker()
    worker.adapter.req_client._message_queue_client.cancel_streams()
    worker.now = 2 * held_blocks.UNWELL_SECONDS
    assert worker.over() == {}
    future = worker.submit("r", 9)
    worker.adapter.is_healthy = False
    worker.now = 1e6
    assert worker.over() == {}
    assert future is not None
    future.answer = True
    assert worker.over() == {9: 1}
