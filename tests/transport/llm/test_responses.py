"""OpenAI's Responses API through the gateway: what the engine gets, what the client gets, what is recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx2
import openai
import pytest

from cwm.domain.conversation import Capture, CapturePolicies
from cwm.domain.limits import LimitRules, Rate
from cwm.domain.model_aliases import ModelAliases
from tests.adapters.vllm.fake_vllm import MAX_MODEL_LEN, MODEL, Behaviour, FakeVllm
from tests.transport.llm.gateway import TENANT, Gateway, gateway, settings_for

pytestmark = pytest.mark.slow

PATH: Final = "/v1/responses"
SAMPLES: Final = Path(__file__).parents[2] / "adapters/vllm/turns/samples"
HEY: Final = {"role": "user", "content": "hey"}
ANSWER_IDS: Final = tuple(range(1000, 1008))
SESSION: Final = {"CWM-Session-Id": "s1"}
STREAMED = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture
async def cwm(vllm: FakeVllm, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with gateway(settings_for(vllm.url), tmp_path, capture=CapturePolicies(Capture.ALL)) as running:
        yield running


def ask(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": "hey", **more}


def of_the_original(response: httpx2.Response) -> str:
    """The response under the id that the engine would have chosen."""
    named = response.text.partition('"id":"')[2].partition('"')[0]
    return response.text.replace(named, "resp_straight")


async def direct(vllm: FakeVllm, body: dict[str, Any]) -> httpx2.Response:
    async with httpx2.AsyncClient(trust_env=False) as client:
        return await client.post(vllm.url + PATH, json=body)


@STREAMED
@pytest.mark.parametrize("capture", ["on", "off"])
@pytest.mark.parametrize("more", [{}, {"tool_choice": {"type": "function", "name": "look"}}])
async def test_the_client_gets_the_bytes_the_engine_would_have_sent(
    cwm: Gateway, vllm: FakeVllm, stream: bool, capture: str, more: dict[str, Any]
) -> None:
    body = ask(stream=stream, **more)
    headers = {"CWM-Capture": "off"} if capture == "off" else {}
    through = await cwm.client.post(PATH, json=body, headers=headers)
    straight = await direct(vllm, body)
    assert through.status_code == 200
    assert of_the_original(through) == straight.text
    assert ("cwm-session-id" in through.headers) == (capture == "on")
    assert "cwm-token-ids" not in through.headers


@STREAMED
async def test_a_response_is_recorded_token_for_token_and_the_next_request_extends_it(
    cwm: Gateway, stream: bool
) -> None:
    first = await cwm.client.post(PATH, json=ask(stream=stream))
    session = first.headers["cwm-session-id"]
    assert await cwm.tokens(session) == (*b"hey", *ANSWER_IDS)
    said = "once upon a time there was \u00e9t\u00e9 {}"
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": said}]}
    again = await cwm.client.post(PATH, json=ask(stream=stream, input=[HEY, answer, HEY]))
    assert again.headers["cwm-session-id"] == session
    assert "cwm-diverged-at" not in again.headers
    turn = await cwm.registry.turn(TENANT, again.headers["cwm-turn"])
    assert turn is not None
    messages = await cwm.registry.turn_messages(turn)
    roles = [message.content["role"] for message in messages]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert messages[1].digest == messages[3].digest


@pytest.mark.parametrize("behaviour", [Behaviour.SPLITS_EVERY_BYTE, Behaviour.NORMAL])
async def test_codex_goes_on_in_the_session_of_its_own_thread(
    cwm: Gateway, vllm: FakeVllm, behaviour: Behaviour
) -> None:
    vllm.behaviour = behaviour
    for sample in ("codex_turn1", "codex_turn2"):
        recorded = json.loads((SAMPLES / f"{sample}.json").read_text())
        body = {**recorded["body"], "model": MODEL}
        through = await cwm.client.post(PATH, json=body, headers=recorded["headers"])
        assert through.status_code == 200, through.text
        assert through.headers["cwm-session-id"] == recorded["headers"]["thread-id"]
        assert through.text.count("event: ") == 14
        assert ": cwm" not in through.text
    assert (await cwm.tokens(recorded["headers"]["thread-id"]))[-8:] == ANSWER_IDS


async def test_a_model_has_the_name_that_the_client_uses(cwm: Gateway, vllm: FakeVllm) -> None:
    cwm.directory.aliases = ModelAliases({"gpt-*": MODEL})
    async with openai.AsyncOpenAI(base_url=f"{cwm.url}/v1", api_key="none", max_retries=0) as sdk:
        response = await sdk.responses.create(model="gpt-5", input="hey")
        assert response.model == "gpt-5"
        async with sdk.responses.stream(model="gpt-5", input="hey") as stream:
            final = await stream.get_final_response()
    assert (final.model, final.output_text) == ("gpt-5", "once upon a time there was \u00e9t\u00e9 {}")
    assert [turn.json["model"] for turn in vllm.turns] == [MODEL, MODEL]


async def test_a_client_that_leaves_a_stream_has_recorded_what_it_was_sent(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    vllm.behaviour = Behaviour.WAITS_AFTER_FIRST_TOKEN
    sending = asyncio.create_task(cwm.client.post(PATH, json=ask(stream=True), headers=SESSION))
    async with asyncio.timeout(10):
        await vllm.waiting.wait()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    vllm.release.set()
    await cwm.turns_ended("s1")
    tokens = await cwm.tokens("s1")
    assert tokens[:4] == (*b"hey", 1000)
    turn = await cwm.registry.current_turn(TENANT, "s1")
    assert turn is not None
    assert turn.abandoned


async def test_a_whole_answer_that_nobody_waits_for_is_aborted_by_the_id_of_the_response(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    vllm.aborts, vllm.weights = True, "w"
    vllm.behaviour = Behaviour.WAITS_BEFORE_ANSWERING
    sending = asyncio.create_task(cwm.client.post(PATH, json=ask(), headers=SESSION))
    async with asyncio.timeout(10):
        await vllm.waiting.wait()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await cwm.turns_ended("s1")
    assert vllm.aborted == [f"{vllm.turns[0].json['request_id']}_0"]
    assert await cwm.tokens("s1") == (*b"hey", 1000, 1001)


async def test_a_stream_that_breaks_off_ends_with_an_error_that_the_sdk_raises(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    vllm.behaviour = Behaviour.DIES_MID_STREAM
    async with openai.AsyncOpenAI(base_url=f"{cwm.url}/v1", api_key="none", max_retries=0) as sdk:
        stream = await sdk.responses.create(model=MODEL, input="hey", stream=True)
        with pytest.raises(openai.APIError):
            async for _ in stream:
                pass
    through = await cwm.client.post(PATH, json=ask(stream=True))
    event, data = through.text.rstrip().rsplit("\n", 2)[-2:]
    assert event == "event: error"
    error = json.loads(data.removeprefix("data: "))
    assert (error["type"], error["code"]) == ("error", "server_is_overloaded")
    assert error["error"]["cwm_code"] == "CWM-5001"


@pytest.mark.parametrize(
    ("more", "status", "code", "param"),
    [
        ({"model": "nope"}, 404, "model_not_found", "model"),
        ({"background": True}, 400, "CWM-1003", "background"),
        ({"nonsense": 1}, 400, "CWM-1003", "nonsense"),
        ({"input": [{"role": "user", "content": [{"image_url": "http://10.0.0.1"}]}]}, 400, "CWM-1003", None),
    ],
)
async def test_what_cannot_be_done_is_refused_in_the_originals_format(
    cwm: Gateway, more: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    refused = await cwm.client.post(PATH, json=ask(**more))
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (status, code)
    assert error["type"] == "invalid_request_error"
    assert param is None or error["param"] == param


async def test_over_a_limit_the_code_is_the_one_that_clients_know(vllm: FakeVllm, tmp_path: Path) -> None:
    rules = LimitRules(session=(Rate(1, 60),))
    async with gateway(settings_for(vllm.url), tmp_path, rules=rules) as cwm:
        answers = [await cwm.client.post(PATH, json=ask()) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[1].json()["error"]["code"] == "rate_limit_exceeded"


async def test_an_answer_is_capped_and_that_is_said(cwm: Gateway, vllm: FakeVllm) -> None:
    answer = await cwm.client.post(PATH, json=ask(max_output_tokens=10**6))
    assert answer.headers["cwm-max-tokens"] == str(MAX_MODEL_LEN)
    assert vllm.turns[0].json["max_output_tokens"] == MAX_MODEL_LEN
