"""Freeze, kill, thaw: what CWM is for, through a real gateway on a real vLLM + LMCache."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from cwm.adapters.sql.database import open_database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.domain.prefix import full_chunks, restorable_tokens, stored_chunks
from cwm.stack.local import PartName
from tests.live.conftest import LiveGateway
from tests.live.engine import LiveEngine
from tests.live.talk import RefusedError, Talk, cached, talk, words

pytestmark = pytest.mark.live


def name() -> str:
    return f"w-{uuid4().hex[:10]}"


@pytest.fixture
async def agent(gateway: LiveGateway) -> AsyncIterator[Talk]:
    async with talk(gateway.url, gateway.model) as client:
        yield client


async def salt_of(gateway: LiveGateway, window: str) -> str:
    """The salt a window's chunks were stored under, from the registry itself."""
    database = open_database(f"sqlite:///{gateway.db_path}")
    try:
        record = await SqlRegistry(database).window(gateway.tenant, window)
    finally:
        await database.dispose()
    assert record is not None
    return record.cache_salt


async def frozen(agent: Talk, tokens: int = 700) -> tuple[str, list[int]]:
    session, ids = await agent.fill(words(tokens))
    window = name()
    await agent.tool("window_freeze", session_id=session, window_name=window)
    return window, ids


@pytest.mark.parametrize("victims", [("vllm",), ("lmcache",), ("vllm", "lmcache")])
async def test_a_window_continues_token_for_token_after_sigkill(
    agent: Talk, live_engine: LiveEngine, victims: tuple[PartName, ...]
) -> None:
    window, ids = await frozen(agent)
    uninterrupted = await agent.complete(ids, max_tokens=32)
    for victim in victims:
        live_engine.kill(victim)
    await asyncio.to_thread(live_engine.wait_ready)

    thawed = await agent.tool("window_thaw", window_name=window)
    continued = await agent.complete(ids, session=thawed["session_id"], max_tokens=32)

    assert thawed["token_count"] == len(ids)
    assert thawed["partial"] is False
    assert thawed["receipt"]["tokens_restored"] == restorable_tokens(len(ids), live_engine.chunk_size)
    assert thawed["receipt"]["blocks_found"] == stored_chunks(len(ids), live_engine.chunk_size)
    assert continued["token_ids"] == uninterrupted["token_ids"]


async def test_the_receipt_says_which_tier_each_token_came_from(agent: Talk, live_engine: LiveEngine) -> None:
    window, ids = await frozen(agent)
    live_engine.kill("vllm")
    live_engine.kill("lmcache")
    await asyncio.to_thread(live_engine.wait_ready)
    receipt = (await agent.tool("window_thaw", window_name=window))["receipt"]
    assert receipt["tokens_by_tier"] == {"redis": restorable_tokens(len(ids), live_engine.chunk_size)}
    assert receipt["tokens_recomputed"] == len(ids) - receipt["tokens_restored"]


async def test_a_window_of_one_tenant_brings_another_tenant_no_cached_token(
    agent: Talk, other_tenant: LiveGateway
) -> None:
    _, ids = await frozen(agent)
    assert cached(await agent.complete(ids)) > 0
    async with talk(other_tenant.url, other_tenant.model) as stranger:
        assert cached(await stranger.complete(ids)) == 0


async def test_a_session_and_a_window_of_another_tenant_answer_like_unknown_ones(
    agent: Talk, other_tenant: LiveGateway
) -> None:
    session, _ = await agent.fill(words(80))
    window, _ = await frozen(agent, 80)
    async with talk(other_tenant.url, other_tenant.model) as stranger:
        for wanted, unknown, code, tool, field in (
            (session, "never-was", "CWM-2001", "window_status", "session_id"),
            (window, "never-was", "CWM-2002", "window_status", "window_name"),
            (window, "never-was", "CWM-2002", "window_thaw", "window_name"),
            (window, "never-was", "CWM-2002", "window_delete", "window_name"),
        ):
            answers = []
            for value in (wanted, unknown):
                with pytest.raises(RefusedError) as refused:
                    await stranger.tool(tool, **{field: value})
                answers.append((refused.value.code, refused.value.message.replace(value, "it")))
            assert answers[0] == answers[1]
            assert answers[0][0] == code


async def test_clones_share_blocks_and_diverge(agent: Talk) -> None:
    window, ids = await frozen(agent)
    clone = name()
    cloned = await agent.tool("window_clone", source_window=window, target_window=clone)
    blocks = (await agent.tool("window_status", window_name=window, include_blocks=True))["blocks"]
    assert cloned["shared_blocks"] == len(blocks) > 0

    left = (await agent.tool("window_thaw", window_name=window))["session_id"]
    right = (await agent.tool("window_thaw", window_name=clone))["session_id"]
    turns = {}
    for session, prompt in ((left, [*ids, 400]), (right, [*ids, 500])):
        turns[session] = await agent.complete(prompt, session=session, max_tokens=16)
        await agent.tool("window_freeze", session_id=session, window_name=f"{clone}-{session[-12:]}")
    assert all(cached(turn) >= len(ids) - 32 for turn in turns.values())
    for session, other in ((left, right), (right, left)):
        status = await agent.tool(
            "window_status", window_name=f"{clone}-{session[-12:]}", include_blocks=True
        )
        shared = [block["hash"] for block in status["blocks"]][: len(blocks)]
        assert shared == [block["hash"] for block in blocks]
        assert turns[session]["prompt_token_ids"] != turns[other]["prompt_token_ids"]


async def test_deleting_a_window_frees_only_blocks_that_nobody_else_uses(
    agent: Talk, live_engine: LiveEngine
) -> None:
    base = words(400)
    short, _ = await agent.fill(base)
    longer, ids = await agent.fill([*base, *words(200)])
    first, second = name(), name()
    await agent.tool("window_freeze", session_id=short, window_name=first)
    await agent.tool("window_freeze", session_id=longer, window_name=second)

    chunk = live_engine.chunk_size
    deleted = await agent.tool("window_delete", window_name=second)
    assert deleted["blocks_deleted"] == stored_chunks(len(ids), chunk) - full_chunks(400, chunk)
    assert deleted["space_freed_bytes"] > 0

    live_engine.kill("vllm")
    await asyncio.to_thread(live_engine.wait_ready)
    survivor = await agent.tool("window_thaw", window_name=first)
    assert survivor["partial"] is False
    assert cached(await agent.complete(ids)) < full_chunks(400, chunk) * chunk + chunk


async def test_a_window_in_use_is_deleted_only_with_force_and_the_refusal_names_who_uses_it(
    agent: Talk,
) -> None:
    window, ids = await frozen(agent, 200)
    clone = name()
    await agent.tool("window_clone", source_window=window, target_window=clone)
    session = (await agent.tool("window_thaw", window_name=window))["session_id"]
    with pytest.raises(RefusedError) as refused:
        await agent.tool("window_delete", window_name=window)
    assert refused.value.code == "CWM-3004"
    assert refused.value.context["windows"] == [clone]
    assert refused.value.context["sessions"] == [session]
    deleted = await agent.tool("window_delete", window_name=window, force=True)
    assert deleted["blocks_deleted"] == 0
    assert (await agent.tool("window_thaw", window_name=clone))["partial"] is False
    assert (await agent.complete(ids, session=session))["token_ids"]


async def test_a_thaw_while_the_engine_is_down_is_retryable_and_leaves_the_window_alone(
    agent: Talk, live_engine: LiveEngine
) -> None:
    window, _ = await frozen(agent, 200)
    before = await agent.tool("window_status", window_name=window)
    live_engine.kill("vllm")
    with pytest.raises(RefusedError) as refused:
        await agent.tool("window_thaw", window_name=window)
    assert refused.value.code in {"CWM-5001", "CWM-5002"}
    assert refused.value.retryable
    await asyncio.to_thread(live_engine.wait_ready)
    after = await agent.tool("window_status", window_name=window)
    assert {**after, "kv_cache": None} == {**before, "kv_cache": None}
    assert (await agent.tool("window_thaw", window_name=window))["partial"] is False


async def test_a_thaw_without_lmcache_works_and_is_partial(agent: Talk, live_engine: LiveEngine) -> None:
    window, ids = await frozen(agent, 200)
    with live_engine.held_down("lmcache"):
        await live_engine.forget_gpu_cache()
        thawed = await agent.tool("window_thaw", window_name=window)
    assert thawed["partial"] is True
    assert f"{restorable_tokens(len(ids), live_engine.chunk_size)} tokens" in thawed["warning"]
    assert thawed["receipt"]["tokens_restored"] == 0
    assert thawed["token_count"] == len(ids)


async def test_chunks_that_are_gone_are_computed_again_and_counted(
    agent: Talk, gateway: LiveGateway, live_engine: LiveEngine
) -> None:
    window, ids = await frozen(agent, 400)
    await live_engine.lose_chunks(ids, await salt_of(gateway, window), keep=5)
    await live_engine.forget_gpu_cache()
    thawed = await agent.tool("window_thaw", window_name=window)
    chunk = live_engine.chunk_size
    assert thawed["partial"] is True
    assert thawed["receipt"]["tokens_restored"] == 5 * chunk
    lost = restorable_tokens(len(ids), chunk) - 5 * chunk
    assert thawed["warning"].startswith(f"{lost} tokens could not be restored")


async def test_a_context_shorter_than_a_block_freezes_and_thaws_by_computing(agent: Talk) -> None:
    session, ids = await agent.fill(words(10))
    window = name()
    result = await agent.tool("window_freeze", session_id=session, window_name=window)
    assert result["block_count"] == 0
    assert "shorter than one block" in result["warning"]
    thawed = await agent.tool("window_thaw", window_name=window)
    assert thawed["partial"] is False
    assert thawed["receipt"]["tokens_recomputed"] == len(ids)


async def test_of_two_freezes_of_one_name_at_once_one_wins(agent: Talk) -> None:
    sessions = [(await agent.fill(words(100)))[0] for _ in range(2)]
    window = name()
    results = await asyncio.gather(
        *(agent.tool("window_freeze", session_id=s, window_name=window) for s in sessions),
        return_exceptions=True,
    )
    refused = [r for r in results if isinstance(r, RefusedError)]
    assert len(refused) == 1
    assert refused[0].code == "CWM-3003"
    loser = sessions[results.index(refused[0])]
    assert (await agent.tool("window_status", session_id=loser))["state"] == "active"


async def test_a_freeze_that_does_not_wait_says_when_it_is_durable(agent: Talk) -> None:
    session, ids = await agent.fill(words(300))
    window = name()
    result = await agent.tool("window_freeze", session_id=session, window_name=window, wait=False)
    assert result["durability"] == "pending"
    async with asyncio.timeout(30):
        while (status := await agent.tool("window_status", window_name=window))["durability"] == "pending":
            pass
    assert status["durability"] == "durable"
    assert status["kv_cache"]["block_count"] == stored_chunks(len(ids), 32)


async def test_a_full_context_is_frozen_and_thawed_and_only_its_continuation_refused(
    agent: Talk, live_engine: LiveEngine
) -> None:
    longest = live_engine.max_model_len
    session, ids = await agent.fill(words(longest - 8))
    assert len(ids) == longest
    window = name()
    await agent.tool("window_freeze", session_id=session, window_name=window)
    thawed = await agent.tool("window_thaw", window_name=window)
    assert thawed["token_count"] == longest
    with pytest.raises(RefusedError) as refused:
        await agent.tool("session_generate", session_id=thawed["session_id"], text="more", max_tokens=1)
    assert refused.value.code == "CWM-1003"
    assert refused.value.context["max_model_len"] == longest


async def test_a_hundred_disconnects_in_the_middle_of_thaws_leave_the_engine_alive(
    agent: Talk, live_engine: LiveEngine
) -> None:
    window, ids = await frozen(agent, 2000)
    restarts = live_engine.restarts("vllm")
    for attempt in range(100):
        if attempt % 10 == 0:
            await live_engine.forget_gpu_cache()
            await live_engine.drop_l1()
        impatient = asyncio.create_task(agent.tool("window_thaw", window_name=window))
        _, unfinished = await asyncio.wait({impatient}, timeout=0.002 * (attempt % 30))
        for task in unfinished:
            task.cancel()
        await asyncio.wait({impatient})
    assert live_engine.restarts("vllm") == restarts
    # The last thaws may be loading yet: who asks for the same blocks meanwhile computes them.
    await agent.complete(ids)
    await live_engine.forget_gpu_cache()
    assert cached(await agent.complete(ids)) > 0
