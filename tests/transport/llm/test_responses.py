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
from cwm.domain.keep import KeepPolicies, KeepPolicy
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


async def test_the_tokens_that_a_response_would_go_on_from_are_counted(cwm: Gateway) -> None:
    async with openai.AsyncOpenAI(base_url=f"{cwm.url}/v1", api_key="none", max_retries=0) as client:
        first = await client.responses.create(model=MODEL, input="hey")
        alone = await client.responses.input_tokens.count(model=MODEL, input="and on")
        after = await client.responses.input_tokens.count(
            model=MODEL, input="and on", previous_response_id=first.id
        )
        with pytest.raises(openai.NotFoundError, match="is not served here"):
            await client.responses.compact(model=MODEL, input="hey")
    assert (alone.object, alone.input_tokens) == ("response.input_tokens", len("and on"))
    assert after.input_tokens == len("hey") + len(first.output_text.encode()) + len("and on")


def of_the_original(response: httpx2.Response) -> str:
    """The response under the id that the engine would have chosen."""
    named = response.text.partition('"id":"')[2].partition('"')[0]
    return response.text.replace(named, "resp_straight")


def response_of(answer: httpx2.Response) -> dict[str, Any]:
    """The response object of an answer, streamed or not."""
    if answer.headers["content-type"].startswith("application/json"):
        return dict(answer.json())
    return dict(json.loads(answer.text.rstrip().rsplit("\n", 1)[-1].removeprefix("data: "))["response"])


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


@STREAMED
async def test_only_the_model_of_the_response_is_renamed(cwm: Gateway, stream: bool) -> None:
    cwm.directory.aliases = ModelAliases({"gpt-*": MODEL})
    tool = {"type": "function", "name": "look", "parameters": {"model": MODEL}}
    answer = await cwm.client.post(PATH, json=ask(model="gpt-5", stream=stream, tools=[tool]))
    sent = answer.text.count('"model":"gpt-5"'), answer.text.count(json.dumps(tool, separators=(",", ":")))
    assert sent == ((3, 3) if stream else (1, 1))
    read = (await cwm.client.get(f"{PATH}/{response_of(answer)['id']}")).json()
    assert read == response_of(answer)
    assert read["model"] == "gpt-5"


@STREAMED
async def test_an_engine_without_the_middleware_has_its_prompts_recorded_and_that_is_said(
    cwm: Gateway, vllm: FakeVllm, stream: bool
) -> None:
    vllm.middleware = False
    first = await cwm.client.post(PATH, json=ask(stream=stream))
    assert first.headers["cwm-recorded"] == "prompt"
    session = first.headers["cwm-session-id"]
    assert await cwm.tokens(session) == tuple(b"hey")
    body = ask(previous_response_id=response_of(first)["id"], input=" on", stream=stream)
    second = await cwm.client.post(PATH, json=body)
    assert second.headers["cwm-session-id"] == session
    said = "hey" + "".join(part["text"] for part in response_of(first)["output"][0]["content"]) + " on"
    assert await cwm.tokens(session) == tuple(said.encode())
    turn = await cwm.registry.current_turn(TENANT, session)
    assert turn is not None
    roles = [message.content["role"] for message in await cwm.registry.turn_messages(turn)]
    assert roles == ["user", "assistant"] * 2


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
    assert (error["type"], error["code"]) == ("error", "server_error")
    assert error["error"]["cwm_code"] == "CWM-5001"


@pytest.mark.parametrize(
    ("more", "status", "code", "param"),
    [
        ({"model": "nope"}, 404, "model_not_found", "model"),
        ({"background": True}, 400, "CWM-1003", "background"),
        ({"priority": 1}, 400, "CWM-1003", "priority"),
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
    rules = LimitRules(principal=(Rate(1, 60),))
    async with gateway(settings_for(vllm.url), tmp_path, rules=rules) as cwm:
        answers = [await cwm.client.post(PATH, json=ask()) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[1].json()["error"]["code"] == "rate_limit_exceeded"


async def test_an_answer_is_capped_and_that_is_said(cwm: Gateway, vllm: FakeVllm) -> None:
    answer = await cwm.client.post(PATH, json=ask(max_output_tokens=10**6))
    assert answer.headers["cwm-max-tokens"] == str(MAX_MODEL_LEN)
    assert vllm.turns[0].json["max_output_tokens"] == MAX_MODEL_LEN


async def test_a_response_is_read_as_its_client_got_it_also_after_a_restart(
    vllm: FakeVllm, tmp_path: Path
) -> None:
    async with gateway(settings_for(vllm.url), tmp_path, capture=CapturePolicies(Capture.ALL)) as cwm:
        answer = (await cwm.client.post(PATH, json=ask())).json()
        streamed = await cwm.client.post(PATH, json=ask(input="on", stream=True))
    async with gateway(settings_for(vllm.url), tmp_path) as again:
        for response in (answer, response_of(streamed)):
            read = await again.client.get(f"{PATH}/{response['id']}")
            assert (read.status_code, read.json()) == (200, response)


@STREAMED
async def test_a_chain_by_previous_response_id_is_what_the_whole_conversation_sent_at_once_is(
    cwm: Gateway, vllm: FakeVllm, stream: bool
) -> None:
    previous, whole, session = None, list[Any](), None
    for number in range(3):
        said = {"role": "user", "content": f"hey {number}"}
        instructions = f"Be kind {number}. "
        answer = await cwm.client.post(
            PATH,
            json=ask(input=[said], previous_response_id=previous, stream=stream, instructions=instructions),
        )
        assert answer.status_code == 200, answer.text
        whole.append(said)
        straight = {"model": MODEL, "input": whole, "instructions": instructions}
        at_once = await cwm.client.post(PATH, json=straight, headers={"CWM-Session-Id": f"whole-{number}"})
        session = session or answer.headers["cwm-session-id"]
        assert answer.headers["cwm-session-id"] == session
        assert await cwm.tokens(session) == await cwm.tokens(f"whole-{number}")
        whole += response_of(at_once)["output"]
        told = f'"previous_response_id":{json.dumps(previous, separators=(",", ":"))}'
        assert answer.text.count(told) == (3 if stream else 1)
        previous = answer.text.partition('"id":"')[2].partition('"')[0]
    listed = (await cwm.client.get(f"{PATH}/{previous}/input_items?order=asc")).json()
    roles = [item["role"] for item in listed["data"]]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    assert listed["data"][0]["content"] == [{"type": "input_text", "text": "hey 0"}]


async def test_input_items_are_paged_as_the_sdk_pages_them(cwm: Gateway) -> None:
    said = [{"role": "user", "content": f"item {number}"} for number in range(5)]
    response = (await cwm.client.post(PATH, json=ask(input=said))).json()
    async with openai.AsyncOpenAI(base_url=f"{cwm.url}/v1", api_key="none", max_retries=0) as sdk:
        for order, expected in (("asc", [0, 1, 2, 3, 4]), ("desc", [4, 3, 2, 1, 0])):
            listed: Any = sdk.responses.input_items.list(response["id"], limit=2, order=order)  # type: ignore[arg-type]
            texts = [item.content[0].text async for item in listed]
            assert texts == [f"item {number}" for number in expected]
    for query in ("limit=0", "limit=101", "limit=x", "order=up", "after=nobody"):
        refused = await cwm.client.get(f"{PATH}/{response['id']}/input_items?{query}")
        assert refused.status_code == 400


async def test_an_item_reference_stands_for_an_item_of_an_earlier_answer(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    first = (await cwm.client.post(PATH, json=ask())).json()
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    on = {"role": "user", "content": "on"}
    second = await cwm.client.post(PATH, json=ask(input=[HEY, reference, on]))
    assert second.status_code == 200
    assert vllm.turns[-1].json["input"] == [HEY, first["output"][0], on]
    assert second.headers["cwm-session-id"]
    third = await cwm.client.post(PATH, json=ask(previous_response_id=second.json()["id"]))
    assert vllm.turns[-1].json["input"][1] == first["output"][0]
    assert third.status_code == 200
    refused = await cwm.client.post(PATH, json=ask(input=[{"type": "item_reference", "id": "msg_gone"}]))
    assert refused.status_code == 404
    assert refused.json()["error"]["message"] == "Item with id 'msg_gone' not found."


async def test_a_deleted_response_is_not_found_and_what_went_on_from_it_goes_on(cwm: Gateway) -> None:
    first = (await cwm.client.post(PATH, json=ask())).json()["id"]
    second = (await cwm.client.post(PATH, json=ask(previous_response_id=first))).json()["id"]
    deleted = await cwm.client.delete(f"{PATH}/{first}")
    assert deleted.json() == {"id": first, "object": "response", "deleted": True}
    assert (await cwm.client.get(f"{PATH}/{first}")).status_code == 404
    assert (await cwm.client.delete(f"{PATH}/{first}")).status_code == 404
    assert (await cwm.client.post(PATH, json=ask(previous_response_id=first))).status_code == 400
    assert (await cwm.client.post(PATH, json=ask(previous_response_id=second))).status_code == 200


async def test_what_is_not_there_is_refused_in_the_words_of_the_original(cwm: Gateway) -> None:
    refused = await cwm.client.post(PATH, json=ask(previous_response_id="resp_x"))
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "previous_response_not_found")
    assert error["message"] == "Previous response with id 'resp_x' not found."
    assert error["param"] == "previous_response_id"
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        refused = await cwm.client.request(method, f"{PATH}/resp_x{path}")
        assert refused.status_code == 404
        assert refused.json()["error"]["message"] == "Response with id 'resp_x' not found."
        assert refused.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("odd", ["", "\0", "\ud800", "a" * 10_000, "../x", "%"])
async def test_an_id_that_no_response_can_have_is_not_found(cwm: Gateway, odd: str) -> None:
    for body in (ask(previous_response_id=odd), ask(input=[{"type": "item_reference", "id": odd}])):
        refused = await cwm.client.post(PATH, content=json.dumps(body))
        assert refused.status_code in {400, 404}, refused.text
        assert "not found" in refused.json()["error"]["message"]
    for end in ("", "/input_items"):
        refused = await cwm.client.get(f"{PATH}/{odd.encode(errors='replace').hex() * 2 or '-'}.{end}")
        assert refused.status_code == 404


async def test_a_response_that_is_complete_can_be_neither_cancelled_nor_streamed_again(cwm: Gateway) -> None:
    response_id = (await cwm.client.post(PATH, json=ask())).json()["id"]
    cancelled = await cwm.client.post(f"{PATH}/{response_id}/cancel")
    assert cancelled.status_code == 400
    assert cancelled.json()["error"]["message"] == "Cannot cancel a synchronous response."
    assert (await cwm.client.get(f"{PATH}/{response_id}?stream=true")).status_code == 400
    assert (await cwm.client.get(f"{PATH}/{response_id}?stream=false")).status_code == 200


@pytest.mark.parametrize("other", [{"x-subject": "bob"}, {"x-tenant": "bolt"}])
async def test_somebody_elses_response_is_answered_like_one_that_does_not_exist(
    cwm: Gateway, other: dict[str, str]
) -> None:
    response = (await cwm.client.post(PATH, json=ask())).json()
    item = response["output"][0]["id"]
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        theirs = await cwm.client.request(method, f"{PATH}/{response['id']}{path}", headers=other)
        nobodys = await cwm.client.request(method, f"{PATH}/resp_0{path}", headers=other)
        assert (theirs.status_code, theirs.text) == (404, nobodys.text.replace("resp_0", response["id"]))
    body = ask(previous_response_id=response["id"])
    assert (await cwm.client.post(PATH, json=body, headers=other)).status_code == 400
    body = ask(input=[{"type": "item_reference", "id": item}])
    assert (await cwm.client.post(PATH, json=body, headers=other)).status_code == 404
    assert (await cwm.client.get(f"{PATH}/{response['id']}")).status_code == 200


async def test_without_store_a_response_is_recorded_and_not_found(cwm: Gateway) -> None:
    answer = await cwm.client.post(PATH, json=ask(store=False))
    assert await cwm.tokens(answer.headers["cwm-session-id"]) == (*b"hey", *ANSWER_IDS)
    assert (await cwm.client.get(f"{PATH}/{answer.json()['id']}")).status_code == 404


async def test_without_store_nothing_is_recorded_where_a_setting_says_so(
    vllm: FakeVllm, tmp_path: Path
) -> None:
    policies = CapturePolicies(Capture.ALL, unstored=Capture.OFF)
    async with gateway(settings_for(vllm.url), tmp_path, capture=policies) as cwm:
        for headers, recorded in (({}, False), ({"x-session-id": "x"}, False), (SESSION, True)):
            answer = await cwm.client.post(PATH, json=ask(store=False), headers=headers)
            assert ("cwm-session-id" in answer.headers) is recorded
        assert "cwm-session-id" in (await cwm.client.post(PATH, json=ask())).headers


async def test_where_clients_have_to_name_their_conversation_storing_a_response_names_it(
    vllm: FakeVllm, tmp_path: Path
) -> None:
    async with gateway(settings_for(vllm.url), tmp_path, capture=CapturePolicies(Capture.NAMED)) as cwm:
        stored, unstored = [await cwm.client.post(PATH, json=ask(store=store)) for store in (True, False)]
        assert "cwm-session-id" not in unstored.headers
        body = ask(previous_response_id=stored.json()["id"], store=False)
        on = await cwm.client.post(PATH, json=body)
        assert on.headers["cwm-session-id"] == stored.headers["cwm-session-id"]


async def test_nothing_is_stored_where_messages_are_not_kept(cwm: Gateway) -> None:
    cwm.turns.keep = KeepPolicies(KeepPolicy(messages=False))
    response = (await cwm.client.post(PATH, json=ask())).json()
    assert (await cwm.client.get(f"{PATH}/{response['id']}")).status_code == 404


async def test_the_name_that_a_client_gives_its_conversation_comes_before_the_response_that_it_goes_on_from(
    cwm: Gateway,
) -> None:
    first = (await cwm.client.post(PATH, json=ask())).json()["id"]
    for headers, session in ((SESSION, "s1"), ({"x-session-id": "theirs"}, "theirs")):
        on = await cwm.client.post(PATH, json=ask(previous_response_id=first), headers=headers)
        assert on.headers["cwm-session-id"] == session


async def test_a_session_that_is_deleted_takes_its_responses_with_it(cwm: Gateway) -> None:
    answer = await cwm.client.post(PATH, json=ask())
    await cwm.registry.remove_session(TENANT, answer.headers["cwm-session-id"], cwm.turns.clock.now())
    assert (await cwm.client.get(f"{PATH}/{answer.json()['id']}")).status_code == 404
