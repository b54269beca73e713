"""Whether an engine reuses KV at all."""

from __future__ import annotations

import pytest

from tests.deploy.modules import reuse


def reason(*blocks: int, caches: bool = True, chunk: int | None = 64) -> str:
    said: str = reuse.no_reuse(caches, blocks, lambda: chunk)
    return said


def never() -> int:
    raise AssertionError("LMCache is asked for nothing")


def test_nothing_is_reused_where_vllm_has_no_prefix_cache_and_lmcache_is_not_asked_then() -> None:
    assert "prefix cache is off" in reuse.no_reuse(False, [16], never)


@pytest.mark.parametrize("blocks", [[64], [16], [16, 32, 64], [0, 64]])
def test_kv_is_reused_where_each_block_divides_the_chunk(blocks: list[int]) -> None:
    assert reason(*blocks) == ""


@pytest.mark.parametrize(("blocks", "misfit"), [([48], 48), ([128], 128), ([16, 0, 48], 48)])
def test_nothing_is_reused_where_a_groups_block_does_not_divide_the_chunk(
    blocks: list[int], misfit: int
) -> None:
    said = reason(*blocks)
    assert f"{misfit} tokens" in said
    assert "chunk of 64" in said


def test_an_lmcache_that_does_not_answer_is_for_the_stock_connector_to_report() -> None:
    assert reason(48, chunk=None) == ""
