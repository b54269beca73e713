"""Limits of turns through /v1: refused before the engine is asked, in the shape that OpenAI's clients read."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI, RateLimitError

from cwm.adapters.vllm.turns.body import RequestBody
from cwm.domain.engine_rules import EngineRules
from cwm.domain.limits import LimitRules, Rate
from cwm.domain.principal import Principal
from tests.adapters.vllm.fake_vllm import ANSWER, MODEL, Behaviour, FakeVllm
from tests.eventually import eventually
from tests.transport.llm.gateway import TENANT, Gateway, gateway, settings_for

pytestmark = pytest.mark.slow

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASK: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hey"}]}
TEXT: dict[str, Any] = {"model": MODEL, "prompt": "hey"}
AGENT = Principal(TENANT, "agent")
ONE, MANY = Rate(1, 60), Rate(1_000_000, 60)
COST = len("hey") + len(ANSWER)

Opened = Callable[[LimitRules], AbstractAsyncContextManager[Gateway]]


@pytest.fixture
def opened(vllm: FakeVllm, tmp_path: Path) -> Opened:
    @asynccontextmanager
    async def running(rules: LimitRules) -> AsyncIterator[Gateway]:
        async with gateway(settings_for(vllm.url), tmp_path, rules=rules) as cwm:
            yield cwm

    return running


def refused(answer: httpx2.Response, code: str) -> dict[str, Any]:
    assert answer.status_code == 429
    told: dict[str, Any] = answer.json()
    assert told["error"]["code"] == code
    assert told["error"]["type"] == "rate_limit_error"
    assert told["error"]["retryable"] is True
    assert int(answer.headers["retry-after"]) == min(60, told["retry_after_seconds"]) >= 1
    is_soon = told["retry_after_seconds"] <= 60
    assert answer.headers["x-should-retry"] == ("true" if is_soon else "false")
    assert told["error"]["context"]["retry_after_seconds"] == told["retry_after_seconds"]
    return told


async def test_a_session_over_its_limit_gets_429_and_when_to_come_back(
    opened: Opened, vllm: FakeVllm
) -> None:
    async with opened(LimitRules(session=(ONE,))) as cwm:
        for headers in ({"CWM-Session-Id": "a"}, {"CWM-Session-Id": "b"}):
            assert (await cwm.client.post(CHAT, json=ASK, headers=headers)).status_code == 200
            asked = len(vllm.turns)
            told = refused(await cwm.client.post(CHAT, json=ASK, headers=headers), "CWM-7001")
            assert "1/minute for each session" in told["error"]["message"]
            assert len(vllm.turns) == asked
        # Of the others nobody knows which belong together.
        for _ in range(3):
            assert (await cwm.client.post(CHAT, json=ASK)).status_code == 200
        assert (await cwm.client.get("/v1/models")).status_code == 200


async def test_openais_own_client_reads_the_refusal_as_a_rate_limit(opened: Opened) -> None:
    async with (
        opened(LimitRules(tenant=(ONE,))) as cwm,
        AsyncOpenAI(base_url=f"{cwm.url}/v1", api_key="none", max_retries=0) as client,
    ):
        await client.chat.completions.create(**ASK)
        with pytest.raises(RateLimitError, match="Rate limit exceeded") as told:
            await client.chat.completions.create(**ASK)
        assert told.value.code == "CWM-7001"


async def test_turns_at_once_are_limited_until_the_engine_has_answered(
    opened: Opened, vllm: FakeVllm
) -> None:
    vllm.behaviour = Behaviour.WAITS_BEFORE_ANSWERING
    async with opened(LimitRules(running_principal=1)) as cwm:
        first = asyncio.create_task(cwm.client.post(CHAT, json=ASK))
        await vllm.waiting.wait()
        refused(await cwm.client.post(CHAT, json=ASK), "CWM-7002")
        # A client that leaves does not stop the engine.
        first.cancel()
        await asyncio.wait([first])
        refused(await cwm.client.post(CHAT, json=ASK), "CWM-7002")
        vllm.behaviour = Behaviour.NORMAL
        vllm.release.set()
        async with asyncio.timeout(20):
            while (await cwm.client.post(CHAT, json=ASK)).status_code == 429:
                pass


async def test_one_request_that_is_thousands_is_counted_as_that_and_never_reaches_the_engine(
    opened: Opened, vllm: FakeVllm
) -> None:
    async with opened(LimitRules(principal=(Rate(12, 60),), running_principal=8)) as cwm:
        many = {**TEXT, "prompt": ["hey", "you"], "n": 4}
        assert (await cwm.client.post(COMPLETIONS, json=many)).status_code == 200
        refused(await cwm.client.post(COMPLETIONS, json={**TEXT, "n": 5}), "CWM-7001")
        for n, told in ((5, "counts as 10 requests"), (2_000, "CWM_SEQUENCES")):
            answer = await cwm.client.post(COMPLETIONS, json={**many, "n": n})
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "CWM-1003"
            assert told in answer.json()["error"]["message"]
        assert len(vllm.turns) == 1
        await cwm.pass_through.drain(20)
        limits = cwm.pass_through.limits
        await limits.settle()
        assert [await limits.running.count(place) for place in limits.rules.places(AGENT)] == [0]


async def test_a_turn_of_several_answers_has_its_places_until_the_engine_has_finished_it(
    opened: Opened, vllm: FakeVllm
) -> None:
    vllm.behaviour = Behaviour.WAITS_BEFORE_ANSWERING
    async with opened(LimitRules(running_principal=3)) as cwm:
        limits = cwm.pass_through.limits
        (place,) = limits.rules.places(AGENT)
        turn = asyncio.create_task(cwm.client.post(COMPLETIONS, json={**TEXT, "n": 3}))
        await vllm.waiting.wait()
        turn.cancel()
        await asyncio.wait([turn])
        refused(await cwm.client.post(COMPLETIONS, json=TEXT), "CWM-7002")
        assert await limits.running.count(place) == 3
        assert limits.bodies.total > 0
        vllm.release.set()
        await cwm.pass_through.drain(20)
        await limits.settle()
        assert await limits.running.count(place) == 0
        await eventually(lambda: limits.bodies.total == 0)


async def test_a_stream_that_its_client_left_has_its_place_until_the_engine_has_finished_it(
    opened: Opened, vllm: FakeVllm
) -> None:
    vllm.behaviour = Behaviour.WAITS_AFTER_FIRST_TOKEN
    # A turn whose tokens count is never cut.
    async with opened(LimitRules(running_principal=1, principal_tokens=(MANY,))) as cwm:
        limits = cwm.pass_through.limits
        async with cwm.client.stream("POST", CHAT, json={**ASK, "stream": True}) as answer:
            assert await anext(answer.aiter_lines())
        for _ in range(30):
            refused(await cwm.client.get("/v1/models"), "CWM-7002")
        assert limits.bodies.total > 0
        vllm.release.set()
        await cwm.pass_through.drain(20)
        await eventually(lambda: limits.bodies.total == 0)
        await limits.settle()
        assert (await cwm.client.get("/v1/models")).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("headers", [{}, {"CWM-Session-Id": "s"}])
async def test_what_a_turn_was_made_of_is_freed_with_it_and_not_by_the_collector(
    opened: Opened, headers: dict[str, str], *, stream: bool
) -> None:
    async with opened(LimitRules()) as cwm:
        gc.collect()
        gc.disable()
        try:
            answer = await cwm.client.post(CHAT, json={**ASK, "stream": stream}, headers=headers)
            assert answer.status_code == 200
            await cwm.pass_through.drain(20)
            await eventually(lambda: cwm.pass_through.limits.bodies.total == 0)
            assert not [each for each in gc.get_objects() if isinstance(each, RequestBody)]
        finally:
            gc.enable()


@pytest.mark.parametrize("headers", [{}, {"CWM-Session-Id": "s"}])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), [(CHAT, ASK), (COMPLETIONS, TEXT)])
async def test_turns_spend_what_they_took_and_are_refused_when_that_is_the_budget(
    opened: Opened, path: str, body: dict[str, Any], headers: dict[str, str], *, stream: bool
) -> None:
    rules = LimitRules(principal_tokens=(Rate(2 * COST, 3_600),))
    async with opened(rules) as cwm:
        for _ in range(2):
            answer = await cwm.client.post(path, json={**body, "stream": stream}, headers=headers)
            assert answer.status_code == 200
            assert b"1001" not in answer.content
            await cwm.pass_through.drain(20)
        told = refused(
            await cwm.client.post(path, json={**body, "stream": stream}, headers=headers), "CWM-7003"
        )
        assert told["error"]["context"]["limit"] == f"{2 * COST}/hour"


async def test_a_stream_that_its_client_leaves_spends_what_the_engine_did(
    opened: Opened, vllm: FakeVllm
) -> None:
    vllm.behaviour = Behaviour.FLOODS
    async with opened(LimitRules(tenant_tokens=(Rate(4, 3_600),))) as cwm:
        async with cwm.client.stream("POST", CHAT, json={**ASK, "stream": True}) as answer:
            async for _ in answer.aiter_lines():
                break
            await vllm.flooding.wait()
        async with asyncio.timeout(20):
            await vllm.turns[0].left.wait()
        await cwm.pass_through.drain(20)
        vllm.behaviour = Behaviour.NORMAL
        refused(await cwm.client.post(CHAT, json=ASK), "CWM-7003")


async def test_a_turn_that_the_engine_refuses_spends_nothing(opened: Opened) -> None:
    async with opened(LimitRules(principal_tokens=(ONE,))) as cwm:
        for _ in range(3):
            assert (await cwm.client.post(CHAT, json={**ASK, "max_tokens": 0})).status_code == 400


async def test_where_tokens_are_budgeted_a_stream_that_hides_them_is_refused(opened: Opened) -> None:
    async with opened(LimitRules(principal_tokens=(MANY,))) as cwm:
        for odd in ({"echo": True}, {"prompt": ["a", "b"]}):
            answer = await cwm.client.post(COMPLETIONS, json={**TEXT, **odd, "stream": True})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "stream"


async def test_what_is_refused_is_in_the_audit_log_of_its_tenant(opened: Opened) -> None:
    async with opened(LimitRules(principal=(ONE,))) as cwm:
        for _ in range(3):
            await cwm.client.post(CHAT, json=ASK, headers={"x-tenant": "other"})
        (event,) = [e for e in await cwm.audit.events("other", 10) if e.event == "limit.exceeded"]
        assert (event.subject, event.outcome) == ("agent", "CWM-7001")
        assert not [e for e in await cwm.audit.events(TENANT, 10) if e.event == "limit.exceeded"]


async def test_a_tenant_at_its_limits_leaves_the_others_theirs(opened: Opened) -> None:
    rules = LimitRules(tenant=(ONE,), tenant_tokens=(Rate(1, 60),))
    async with opened(rules) as cwm:
        for tenant in ("a", "b"):
            headers = {"x-tenant": tenant}
            assert (await cwm.client.post(CHAT, json=ASK, headers=headers)).status_code == 200
            assert (await cwm.client.post(CHAT, json=ASK, headers=headers)).status_code == 429


async def test_engines_that_have_all_they_may_have_refuse_further_turns_with_and_without_a_session(
    opened: Opened, vllm: FakeVllm
) -> None:
    vllm.behaviour = Behaviour.WAITS_BEFORE_ANSWERING
    async with opened(LimitRules()) as cwm:
        cwm.directory.rules = {"": EngineRules(max_running=1)}
        first = asyncio.create_task(cwm.client.post(CHAT, json=ASK))
        await vllm.waiting.wait()
        for headers in ({}, {"CWM-Session-Id": "a"}):
            refused(await cwm.client.post(CHAT, json=ASK, headers=headers), "CWM-7002")
        asked = {**ASK, "max_tokens": 8}
        answer = await cwm.client.post("/v1/messages", json=asked)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert answer.json()["error"]["type"] == "rate_limit_error"
        vllm.behaviour = Behaviour.NORMAL
        vllm.release.set()
        assert (await first).status_code == 200
        assert (await cwm.client.post(CHAT, json=ASK, headers={"CWM-Session-Id": "a"})).status_code == 200
        assert cwm.directory.health[""].load == 0
