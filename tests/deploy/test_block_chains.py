"""What is dropped from vLLM's own cache, and which of its blocks rest on loads."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import pytest

from tests.deploy.modules import block_chains, loaded_blocks

_SIZE = 4


def chain(text: str) -> list[bytes]:
    """The hashes of the whole blocks of a text, of four letters each."""
    ends = range(_SIZE, len(text) + 1, _SIZE)
    return [hashlib.sha256(text[:end].encode()).digest() for end in ends]


class Cache:
    """vLLM's own cache of one group of KV."""

    def __init__(self, blocks: int = 100) -> None:
        self.num_gpu_blocks = blocks
        self.hash_block_size = _SIZE
        self.free = list(range(10_000, 0, -1))
        self.blocks: dict[int, Any] = {}
        self.own: dict[str, list[Any]] = {}
        self.cached_block_hash_to_block = SimpleNamespace(_cache={})
        manager = SimpleNamespace(kv_cache_group_id=0, req_to_blocks=self.own)
        coordinator = SimpleNamespace(single_type_managers=[manager])
        self.manager = SimpleNamespace(block_pool=self, coordinator=coordinator)

    @property
    def table(self) -> dict[bytes, Any]:
        found: dict[bytes, Any] = self.cached_block_hash_to_block._cache
        return found

    def compute(self, request: Any, hashes: list[bytes] | None = None) -> None:
        """Give the request's blocks hashes, those that the cache has already included."""
        own = self.own.setdefault(request.request_id, [])
        for each in (request.block_hashes if hashes is None else hashes)[len(own) :]:
            block = self.table.get(each + bytes(4))
            if block is None:
                block = SimpleNamespace(block_id=self.free.pop(), block_hash=each)
                self.blocks[block.block_id] = self.table[each + bytes(4)] = block
            own.append(block)

    def evict_blocks(self, numbers: set[int]) -> None:
        for number in numbers:
            block = self.blocks[number]
            del self.table[block.block_hash + bytes(4)]
            block.block_hash = None
            self.free.append(number)

    def has(self, text: str) -> int:
        """The blocks of a text that are found."""
        hashes = chain(text)
        return next((at for at, each in enumerate(hashes) if each + bytes(4) not in self.table), len(hashes))


class Engine:
    def __init__(self, blocks: int = 100) -> None:
        self.cache = Cache(blocks)
        self.chains = block_chains.BlockChains([_SIZE])
        self.loaded = loaded_blocks.LoadedBlocks([_SIZE])
        self.chains.bind(self.cache.manager)
        self.loaded.bind(self.cache.manager)

    def request(self, text: str) -> SimpleNamespace:
        return SimpleNamespace(request_id=text, block_hashes=chain(text), num_computed_tokens=0)

    def start(self, text: str) -> SimpleNamespace:
        request = self.request(text)
        self.cache.compute(request)
        self.chains.run(request)
        request.num_computed_tokens = len(text)
        return request

    def serve(self, text: str, loaded: range | None = None, *, generated: str = "") -> int:
        """From beginning to end; up to which token it rested on loads."""
        found = self.cache.has(text) * _SIZE
        request = self.start(text)
        self.loaded.admit(text, loaded.stop if loaded else found, loaded)
        request.block_hashes = chain(text + generated)
        self.cache.compute(request)
        tokens: int = self.loaded.finish(text, len(text + generated))
        self.chains.finish(request)
        del self.cache.own[text]
        return tokens

    def drop(self, text: str, tokens: int) -> tuple[int, list[str]]:
        told: tuple[int, list[str]] = self.chains.drop(self.request(text), tokens)
        return told


def test_a_drop_takes_the_block_with_the_token_and_all_that_continue_it() -> None:
    engine = Engine()
    for text in ("aaaabbbbcccc", "aaaabbbbddddeeee", "aaaaffff", "gggghhhh"):
        engine.serve(text)
    assert engine.drop("aaaabbbbcccc", 5) == (4, [])
    assert [engine.cache.has(text) for text in ("aaaabbbb", "aaaaffff", "gggghhhh")] == [1, 2, 2]
    assert engine.drop("aaaabbbbcccc", 5) == (0, [])


def test_what_was_generated_is_dropped_too() -> None:
    engine = Engine()
    engine.serve("aaaabbbb", generated="ccccdddd")
    assert engine.drop("aaaabbbb", 4) == (3, [])


@pytest.mark.parametrize("tokens", [8, 1000])
def test_a_drop_beyond_the_prompt_takes_nothing(tokens: int) -> None:
    engine = Engine()
    engine.serve("aaaabbbb", generated="cccc")
    assert engine.drop("aaaabbbb", tokens) == (0, [])


def test_a_running_request_goes_on_under_hashes_that_nobody_finds() -> None:
    engine = Engine()
    running, other, before = engine.start("aaaabbbb"), engine.start("xxxxyyyy"), engine.start("aaaa")
    assert engine.drop("aaaabbbbcccc", 4) == (1, ["aaaabbbb"])
    assert running.block_hashes[:1] == chain("aaaa")
    assert running.block_hashes[1] != chain("aaaabbbb")[1]
    assert (other.block_hashes, before.block_hashes) == (chain("xxxxyyyy"), chain("aaaa"))


def test_a_request_that_has_not_come_so_far_keeps_its_hashes() -> None:
    engine = Engine()
    behind = engine.start("aaaabbbb")
    behind.num_computed_tokens = 4
    assert engine.drop("aaaabbbb", 4) == (1, [])
    assert behind.block_hashes == chain("aaaabbbb")


def test_links_are_as_few_as_what_the_cache_has_and_a_drop_still_finds_all() -> None:
    engine = Engine(blocks=8)
    engine.serve("keepthis", generated="andthat!")
    for number in range(4000):
        engine.serve(f"{number:08}")
        engine.drop(f"{number:08}", 0)
    assert engine.chains.count < 3 * 1032
    assert engine.drop("keepthis", 4) == (3, [])


def test_after_too_many_links_a_drop_takes_what_it_cannot_tell() -> None:
    engine = Engine(blocks=8)
    engine.serve("aaaabbbb")
    long = "".join(f"{number:04}" for number in range(9000))
    request = engine.start(long)
    # Of this chain the cache has the end alone.
    engine.cache.evict_blocks({block.block_id for block in engine.cache.own[long][:-1]})
    engine.chains.finish(request)
    assert engine.chains.count == 0
    engine.serve("ccccdddd")
    assert engine.drop("ccccdddd", 4)[0] == 4
    assert engine.cache.has("cccc") == 1


def test_what_a_load_brought_is_known_until_it_is_evicted() -> None:
    engine = Engine()
    assert engine.serve("aaaabbbb") == 0
    assert engine.serve("ccccddddeeee", range(8)) == 8
    assert engine.serve("ccccddddffff") == 8
    assert engine.serve("ccccgggg") == 4
    assert engine.serve("aaaabbbbcccc") == 0
    engine.drop("cccc", 0)
    # The blocks of the load are used again, for other tokens and for the same.
    assert engine.serve("aaaabbbbeeeeffff") == 0
    assert engine.serve("ccccddddeeee") == 0
    engine.drop("cccc", 0)
    assert engine.serve("cccc", range(4)) == 4
    engine.drop("cccc", 0)
    assert engine.serve("cccc") == 0
    assert engine.serve("ccccdddd") == 0


def test_what_is_computed_on_top_of_a_load_rests_on_it() -> None:
    engine = Engine()
    engine.serve("aaaabbbb", range(4), generated="cccc")
    assert engine.serve("aaaabbbbccccdddd") == 4
    # The load alone is evicted and computed anew; what was computed on top of it is still the same.
    engine.cache.evict_blocks({engine.cache.table[chain("aaaa")[0] + bytes(4)].block_id})
    engine.serve("aaaa")
    assert engine.serve("aaaabbbbccccdddd") == 4
    assert engine.serve("aaaa") == 0


def test_what_was_computed_on_top_of_one_load_does_not_rest_on_a_later_one() -> None:
    engine = Engine()
    engine.serve("aaaabbbb", range(4))
    assert engine.serve("aaaabbbbccccdddd", range(8, 12)) == 12
    assert engine.serve("aaaabbbbxxxx") == 4
    assert engine.serve("aaaabbbbccccxxxx") == engine.serve("aaaabbbbccccddddeeee") == 12


def test_blocks_before_a_load_do_not_rest_on_it() -> None:
    engine = Engine()
    engine.serve("aaaa")
    assert engine.serve("aaaabbbb", range(4, 8)) == 8
    assert engine.serve("aaaaxxxx") == 0


def test_what_a_running_request_has_computed_is_marked_step_by_step() -> None:
    engine = Engine()
    request = engine.start("aaaabbbbcccc")
    engine.loaded.admit(request.request_id, 4, range(4))
    engine.loaded.step(request.request_id, 12)
    assert engine.serve("aaaabbbbccccdddd") == 4
    assert engine.loaded.count == 4
