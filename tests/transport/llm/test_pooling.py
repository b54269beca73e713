"""Models that do not generate: their requests pass, under the caller's limits, and leave nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cwm.adapters.vllm.turns.wire import VllmWire
from cwm.domain.engine_rules import EngineRules
from cwm.domain.limits import LimitRules, Rate
from cwm.domain.model_aliases import ModelAliases
from cwm.domain.pooling import POOLING_PATHS
from tests.adapters.vllm.fake_vllm import MODEL, Behaviour, FakeVllm, fake_vllm
from tests.eventually import eventually
from tests.transport.llm.gateway import Gateway, gateway, settings_for

pytestmark = pytest.mark.slow

EMBEDDINGS = "/v1/embeddings"
ASKED = {"model": MODEL, "input": ["one text", "another"]}
SAID = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("path", POOLING_PATHS)
async def test_what_a_model_serves_is_passed_as_it_says_it(cwm: Gateway, vllm: FakeVllm, path: str) -> None:
    vllm.pooled = {path: {"object": "list", "data": [{"index": 0}], "usage": {"total_tokens": 7}}}
    answer = await cwm.client.post(path, json=ASKED)
    assert (answer.status_code, answer.json()) == (200, vllm.pooled[path])
    (seen,) = [each for each in vllm.seen if each.target == path]
    assert {name: value for name, value in seen.json.items() if name != "cache_salt"} == ASKED
    assert seen.json["cache_salt"].startswith("cwm1-")
    assert "cwm-session-id" not in answer.headers


async def test_no_completion_is_asked_of_a_model_that_does_not_generate(cwm: Gateway, vllm: FakeVllm) -> None:
    vllm.pooled = {"/v1/embeddings": {"data": []}}
    await cwm.client.post("/v1/embeddings", json=ASKED)
    assert not [each for each in vllm.seen if each.target == "/v1/completions"]


async def test_without_a_name_the_only_model_is_meant(cwm: Gateway, vllm: FakeVllm) -> None:
    vllm.pooled = {"/rerank": {"results": []}}
    answer = await cwm.client.post("/rerank", json={"query": "which?", "documents": ["a", "b"]})
    assert answer.status_code == 200
    assert vllm.seen[-1].json["model"] == MODEL


@pytest.mark.parametrize("path", POOLING_PATHS)
async def test_a_model_that_does_something_else_is_refused_in_the_api_s_shape(
    cwm: Gateway, path: str
) -> None:
    answer = await cwm.client.post(path, json=ASKED)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "CWM-1003")
    assert f"does not serve {path}" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": SAID}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": SAID, "max_tokens": 16}),
    ],
)
@pytest.mark.parametrize("session", [{}, {"CWM-Session-Id": "s-embeds"}])
async def test_a_turn_of_a_model_that_does_not_generate_is_refused_with_what_it_is_for(
    cwm: Gateway, vllm: FakeVllm, path: str, body: dict[str, object], session: dict[str, str]
) -> None:
    vllm.generates, vllm.pooled = False, {EMBEDDINGS: {"data": []}, "/pooling": {"data": []}}
    answer = await cwm.client.post(path, json={"model": MODEL, **body}, headers=session)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (400, "CWM-1003", "invalid_request_error")
    assert "does not generate. It is for requests to /v1/embeddings, /pooling." in error["message"]
    assert not vllm.turns
    assert (await cwm.client.post(EMBEDDINGS, json=ASKED)).status_code == 200


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"model": "unheard-of", "input": "x"}, "unheard-of"),
        ({"model": MODEL, "input": "x", "cache_salt": "theirs"}, "cache_salt"),
        ({"model": MODEL, "input": "x", "kv_transfer_params": {}}, "kv_transfer_params"),
        ({"model": MODEL, "input": {"content": [{"image_url": "http://10.0.0.1/"}]}}, "input"),
        ({"model": MODEL, "documents": [{"type": "image_url", "image_url": {"url": "x"}}]}, "documents"),
        ({"model": MODEL, "input": "x", "encoding_format": "bytes"}, "encoding_format"),
        ({"model": MODEL, "input": "x", "encoding_format": "bytes_only"}, "encoding_format"),
        ({"model": 5, "input": "x"}, "model"),
        ([], "JSON"),
    ],
)
async def test_what_does_not_pass_reaches_no_engine(
    cwm: Gateway, vllm: FakeVllm, body: object, named: str
) -> None:
    vllm.pooled = {"/v1/embeddings": {"data": []}}
    answer = await cwm.client.post("/v1/embeddings", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "CWM-1003")
    assert named in answer.json()["error"]["message"]
    assert not [each for each in vllm.seen if each.target == "/v1/embeddings"]


async def test_an_answer_over_the_operator_s_limit_is_refused_while_it_is_read(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    cwm.pass_through.wire = VllmWire(max_answer_bytes=1024 * 1024)
    vllm.pooled = {"/v1/embeddings": {"data": [{"embedding": "A" * 32 * 1024 * 1024}]}}
    answer = await cwm.client.post("/v1/embeddings", json=ASKED)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "CWM-1003")
    assert "CWM_MAX_ANSWER_BYTES" in answer.json()["error"]["message"]
    (seen,) = [each for each in vllm.seen if each.target == "/v1/embeddings"]
    async with asyncio.timeout(10):
        await eventually(seen.left.is_set)


@pytest.mark.parametrize("first", [True, False])
async def test_a_large_answer_spends_the_tokens_that_it_says_wherever_it_says_them(
    vllm: FakeVllm, tmp_path: Path, first: bool
) -> None:
    usage = {"usage": {"prompt_tokens": 7, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 0}}}
    said = {"results": [{"document": {"text": 'of "usage": {"total_tokens": 5}' + "x" * 1024 * 1024}}]}
    vllm.pooled = {"/rerank": {**usage, **said} if first else {**said, **usage}}
    asked = {"query": "which?", "documents": ["a" * 300 * 1024]}
    rules = LimitRules(principal_tokens=(Rate(7, 3_600),))
    async with gateway(settings_for(vllm.url), tmp_path, rules=rules) as cwm:
        answer = await cwm.client.post("/rerank", json=asked)
        assert (answer.status_code, answer.json()) == (200, vllm.pooled["/rerank"])
        refused = await cwm.client.post("/rerank", json=asked)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "CWM-7003")


@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_encodings_whose_answers_say_their_usage_pass(
    cwm: Gateway, vllm: FakeVllm, encoding: str
) -> None:
    vllm.pooled = {"/v1/embeddings": {"data": []}}
    answer = await cwm.client.post("/v1/embeddings", json={**ASKED, "encoding_format": encoding})
    assert answer.status_code == 200
    assert vllm.seen[-1].json["encoding_format"] == encoding


@pytest.fixture
async def second() -> AsyncIterator[FakeVllm]:
    async with fake_vllm() as fake:
        fake.pooled = {EMBEDDINGS: {"data": ["second"]}}
        yield fake


@pytest.fixture
async def fleet(vllm: FakeVllm, second: FakeVllm, tmp_path: Path) -> AsyncIterator[Gateway]:
    """Two engines of which it is known what they serve."""
    vllm.pooled = {EMBEDDINGS: {"data": ["first"]}}
    others = {"second": settings_for(second.url)}
    async with gateway(settings_for(vllm.url), tmp_path, others=others) as running:
        for _ in range(2):
            assert (await running.client.post(EMBEDDINGS, json=ASKED)).status_code == 200
        yield running


async def test_what_an_engine_that_is_gone_did_not_answer_another_one_does(
    fleet: Gateway, vllm: FakeVllm
) -> None:
    vllm.behaviour = Behaviour.HANGS_UP_ON_EVERY_REQUEST
    vllm.seen.clear()
    for _ in range(2):
        answer = await fleet.client.post(EMBEDDINGS, json=ASKED)
        assert (answer.status_code, answer.json()) == (200, {"data": ["second"]})
    assert [each for each in vllm.seen if each.target == EMBEDDINGS]
    assert fleet.meter.counts["event answer_gone_on"] == 1
    vllm.seen.clear()
    for _ in range(2):
        assert (await fleet.client.post(EMBEDDINGS, json=ASKED)).json() == {"data": ["second"]}
    assert not [each for each in vllm.seen if each.target == EMBEDDINGS]


async def test_where_all_engines_are_gone_the_error_says_so(
    fleet: Gateway, vllm: FakeVllm, second: FakeVllm
) -> None:
    vllm.behaviour = second.behaviour = Behaviour.HANGS_UP_ON_EVERY_REQUEST
    answer = await fleet.client.post(EMBEDDINGS, json=ASKED)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "CWM-5001")


async def test_behind_a_router_nothing_is_asked_again(
    fleet: Gateway, vllm: FakeVllm, second: FakeVllm
) -> None:
    fleet.directory.rules = {"first": EngineRules(is_router=True)}
    vllm.behaviour = Behaviour.HANGS_UP_ON_EVERY_REQUEST
    answers = [await fleet.client.post(EMBEDDINGS, json=ASKED) for _ in range(2)]
    assert sorted(answer.status_code for answer in answers) == [200, 503]


async def test_a_client_that_leaves_ends_the_engine_s_work_and_frees_its_place(
    vllm: FakeVllm, tmp_path: Path
) -> None:
    vllm.pooled = {EMBEDDINGS: {"data": []}}
    vllm.behaviour = Behaviour.WAITS_BEFORE_ANSWERING
    async with gateway(settings_for(vllm.url), tmp_path, rules=LimitRules(running_principal=1)) as cwm:
        sending = asyncio.create_task(cwm.client.post(EMBEDDINGS, json=ASKED))
        async with asyncio.timeout(10):
            await vllm.waiting.wait()
        assert (await cwm.client.post(EMBEDDINGS, json=ASKED)).json()["error"]["code"] == "CWM-7002"
        sending.cancel()
        (seen,) = [each for each in vllm.seen if each.target == EMBEDDINGS]
        async with asyncio.timeout(10):
            await seen.left.wait()
        vllm.behaviour = Behaviour.NORMAL
        async with asyncio.timeout(10):
            while (answer := await cwm.client.post(EMBEDDINGS, json=ASKED)).status_code == 429:
                pass
        assert answer.status_code == 200


@pytest.mark.parametrize("size", [10, 1024 * 1024])
async def test_under_an_alias_the_answer_names_the_model_as_the_request_did(
    cwm: Gateway, vllm: FakeVllm, size: int
) -> None:
    cwm.directory.aliases = ModelAliases({"text-embedding-*": MODEL})
    said = {"results": [{"document": {"text": f', "model":"{MODEL}"' + "x" * size}}]}
    vllm.pooled = {"/rerank": {"id": "r", "model": MODEL, **said}}
    asked = {"model": "text-embedding-3", "query": "which?", "documents": ["a"]}
    answer = await cwm.client.post("/rerank", json=asked)
    assert answer.json() == {"id": "r", "model": "text-embedding-3", **said}
    assert vllm.seen[-1].json["model"] == MODEL
