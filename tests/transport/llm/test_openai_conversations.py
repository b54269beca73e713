"""OpenAI's Conversations API through the gateway: created, gone on with, read again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import openai
import pytest

from cwm.domain.conversation import Capture, CapturePolicies
from cwm.domain.keep import KeepPolicies, KeepPolicy
from cwm.domain.limits import LimitRules, Rate
from tests.adapters.vllm.fake_vllm import MODEL, Behaviour, FakeVllm
from tests.transport.llm.gateway import TENANT, Gateway, gateway, settings_for

pytestmark = pytest.mark.slow

PATH: Final = "/v1/conversations"
RESPONSES: Final = "/v1/responses"
HEY: Final = {"type": "message", "role": "user", "content": "hey"}
SAID: Final = "once upon a time there was \u00e9t\u00e9 {}"
ALL: Final = CapturePolicies(Capture.ALL)


@pytest.fixture
async def cwm(vllm: FakeVllm, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with gateway(settings_for(vllm.url), tmp_path, capture=ALL) as running:
        yield running


@pytest.fixture
async def sdk(cwm: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client_of(cwm) as client:
        yield client


def client_of(cwm: Gateway) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{cwm.url}/v1", api_key="none", max_retries=0)


async def texts_in(sdk: openai.AsyncOpenAI, conversation: str, **page: Any) -> list[str]:
    listed: Any = sdk.conversations.items.list(conversation, **page)
    return [item.content[0].text async for item in listed]


async def created(cwm: Gateway, **fields: Any) -> str:
    answer = await cwm.client.post(PATH, json=fields)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def test_a_conversation_is_created_described_and_deleted(sdk: openai.AsyncOpenAI) -> None:
    conversation = await sdk.conversations.create(metadata={"topic": "tea"}, items=[HEY])  # type: ignore[list-item]
    assert conversation.id.startswith("conv_")
    assert (conversation.object, conversation.metadata) == ("conversation", {"topic": "tea"})
    assert await sdk.conversations.retrieve(conversation.id) == conversation
    changed = await sdk.conversations.update(conversation.id, metadata={"topic": "cake"})
    assert changed.metadata == {"topic": "cake"}
    assert await sdk.conversations.retrieve(conversation.id) == changed
    deleted = await sdk.conversations.delete(conversation.id)
    assert deleted.to_dict() == {"id": conversation.id, "object": "conversation.deleted", "deleted": True}
    with pytest.raises(openai.NotFoundError, match=f"Conversation with id '{conversation.id}' not found."):
        await sdk.conversations.retrieve(conversation.id)


async def test_items_are_added_read_paged_and_deleted(cwm: Gateway, sdk: openai.AsyncOpenAI) -> None:
    conversation = await created(cwm)
    assert (await cwm.client.get(f"{PATH}/{conversation}/items")).json()["data"] == []
    said: Any = [{"role": "user", "content": f"item {number}"} for number in range(5)]
    added: Any = await sdk.conversations.items.create(conversation, items=said)
    assert [item.content[0].text for item in added.data] == [item["content"] for item in said]
    assert (added.first_id, added.last_id, added.has_more) == (added.data[0].id, added.data[-1].id, False)
    assert await texts_in(sdk, conversation, limit=2, order="asc") == [f"item {n}" for n in range(5)]
    assert await texts_in(sdk, conversation, limit=2) == [f"item {n}" for n in range(4, -1, -1)]
    one = added.data[1]
    assert await sdk.conversations.items.retrieve(str(one.id), conversation_id=conversation) == one
    left = await sdk.conversations.items.delete(str(one.id), conversation_id=conversation)
    assert left.id == conversation
    assert await texts_in(sdk, conversation, order="asc") == ["item 0", "item 2", "item 3", "item 4"]
    with pytest.raises(openai.NotFoundError, match=f"Item with id '{one.id}' not found."):
        await sdk.conversations.items.retrieve(str(one.id), conversation_id=conversation)


def text_of(item: dict[str, Any]) -> str:
    content = item["content"]
    return str(content if isinstance(content, str) else content[0]["text"])


@pytest.mark.parametrize("by_object", [False, True])
async def test_turns_go_on_in_a_conversation_also_after_a_restart(
    vllm: FakeVllm, tmp_path: Path, by_object: bool
) -> None:
    whole: list[Any] = [HEY]
    async with gateway(settings_for(vllm.url), tmp_path, capture=ALL) as cwm:
        conversation = await created(cwm, items=whole)
    for number in range(3):
        async with gateway(settings_for(vllm.url), tmp_path, capture=ALL) as cwm, client_of(cwm) as sdk:
            asked: Any = {"type": "message", "role": "user", "content": f" on {number}"}
            which: Any = {"id": conversation} if by_object else conversation
            raw = await sdk.responses.with_raw_response.create(model=MODEL, input=[asked], conversation=which)
            response = raw.parse()
            assert response.conversation is not None
            assert (response.conversation.id, response.previous_response_id) == (conversation, None)
            whole.append(asked)
            assert vllm.turns[-1].json["conversation"] is None
            assert [*map(text_of, vllm.turns[-1].json["input"])] == [*map(text_of, whole)]
            at_once = {"model": MODEL, "input": whole}
            await cwm.client.post(RESPONSES, json=at_once, headers={"CWM-Session-Id": f"whole-{number}"})
            assert raw.headers["cwm-session-id"] == conversation
            assert await cwm.tokens(conversation) == await cwm.tokens(f"whole-{number}")
            assert (await sdk.responses.retrieve(response.id)).to_dict() == response.to_dict()
            sent: Any = sdk.responses.input_items.list(response.id, order="asc")
            assert [item.content[0].text async for item in sent] == [*map(text_of, whole)]
            whole.append(response.output[0].to_dict())
            assert await texts_in(sdk, conversation, limit=2, order="asc") == [*map(text_of, whole)]


async def test_a_streamed_response_is_in_its_conversation_before_its_last_event(
    cwm: Gateway, sdk: openai.AsyncOpenAI
) -> None:
    conversation = await created(cwm)
    for number in range(3):
        events = await sdk.responses.create(
            model=MODEL, input=f"hey {number}", conversation=conversation, stream=True
        )
        async for event in events:
            if event.type == "response.completed":
                assert event.response.conversation is not None
                said = await texts_in(sdk, conversation)
                assert said[:2] == [SAID, f"hey {number}"]


async def test_a_response_of_a_conversation_can_be_gone_on_from_outside_of_it(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    conversation = await created(cwm, items=[HEY])
    ask: dict[str, Any] = {"model": MODEL, "input": "one", "conversation": conversation}
    await cwm.client.post(RESPONSES, json=ask)
    await cwm.client.post(f"{PATH}/{conversation}/items", json={"items": [HEY]})
    last = (await cwm.client.post(RESPONSES, json=ask | {"input": "two"})).json()["id"]
    body = {"model": MODEL, "input": "three", "previous_response_id": last}
    on = await cwm.client.post(RESPONSES, json=body)
    said = ["hey", "one", SAID, "hey", "two", SAID, "three"]
    assert [*map(text_of, vllm.turns[-1].json["input"])] == said
    assert on.headers["cwm-session-id"] == conversation
    items = (await cwm.client.get(f"{PATH}/{conversation}/items?order=asc")).json()["data"]
    assert [*map(text_of, items)] == said[:-1]


async def test_a_response_that_is_not_stored_is_added_to_its_conversation_all_the_same(
    cwm: Gateway, sdk: openai.AsyncOpenAI
) -> None:
    conversation = await created(cwm)
    for _ in range(2):
        response = await sdk.responses.create(
            model=MODEL, input="hey", conversation=conversation, store=False
        )
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(response.id)
    assert await texts_in(sdk, conversation, order="asc") == ["hey", SAID] * 2


async def test_a_request_that_is_not_to_be_captured_adds_nothing(
    cwm: Gateway, sdk: openai.AsyncOpenAI
) -> None:
    conversation = await created(cwm, items=[HEY])
    headers = {"CWM-Capture": "off"}
    await sdk.responses.create(model=MODEL, input="on", conversation=conversation, extra_headers=headers)
    assert await texts_in(sdk, conversation) == ["hey"]


async def test_one_response_at_a_time_is_added_to_a_conversation(
    cwm: Gateway, vllm: FakeVllm, sdk: openai.AsyncOpenAI
) -> None:
    conversation = await created(cwm)
    vllm.behaviour = Behaviour.WAITS_BEFORE_ANSWERING
    first = asyncio.create_task(sdk.responses.create(model=MODEL, input="hey", conversation=conversation))
    async with asyncio.timeout(10):
        await vllm.waiting.wait()
    refused = await cwm.client.post(
        RESPONSES, json={"model": MODEL, "input": "me too", "conversation": conversation}
    )
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "conversation_locked")
    assert (error["type"], error["param"]) == ("invalid_request_error", "conversation")
    vllm.release.set()
    await first
    vllm.behaviour = Behaviour.NORMAL
    await sdk.responses.create(model=MODEL, input="now", conversation=conversation)
    assert await texts_in(sdk, conversation, order="asc") == ["hey", SAID, "now", SAID]


@pytest.mark.parametrize("behaviour", [Behaviour.ENGINE_DEAD, Behaviour.DIES_MID_STREAM])
async def test_a_turn_that_fails_adds_nothing_and_lets_the_conversation_go(
    cwm: Gateway, vllm: FakeVllm, sdk: openai.AsyncOpenAI, behaviour: Behaviour
) -> None:
    conversation = await created(cwm)
    vllm.behaviour = behaviour
    ask = {"model": MODEL, "input": "hey", "conversation": conversation, "stream": True}
    await cwm.client.post(RESPONSES, json=ask)
    await cwm.client.post(RESPONSES, json=ask | {"stream": False, "priority": 1})
    assert await texts_in(sdk, conversation) == []
    vllm.behaviour = Behaviour.NORMAL
    await sdk.responses.create(model=MODEL, input="now", conversation=conversation)
    assert await texts_in(sdk, conversation, order="asc") == ["now", SAID]


async def test_an_item_that_is_in_the_conversation_is_not_added_again(cwm: Gateway) -> None:
    conversation = await created(cwm, items=[{**HEY, "id": "msg_a"}])
    for path, body in (
        (RESPONSES, {"model": MODEL, "input": [{**HEY, "id": "msg_a"}], "conversation": conversation}),
        (f"{PATH}/{conversation}/items", {"items": [{**HEY, "id": "msg_a"}]}),
    ):
        refused = await cwm.client.post(path, json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].startswith("Duplicate item found with id msg_a.")
    on = {"model": MODEL, "input": "on", "conversation": conversation}
    assert (await cwm.client.post(RESPONSES, json=on)).status_code == 200


async def test_a_conversation_and_a_previous_response_exclude_each_other(cwm: Gateway) -> None:
    body = {
        "model": MODEL,
        "input": "hey",
        "conversation": await created(cwm),
        "previous_response_id": "resp_x",
    }
    refused = await cwm.client.post(RESPONSES, json=body)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "mutually_exclusive_parameters")
    assert error["message"] == (
        "Mutually exclusive parameters. Ensure you are only providing one of: "
        "'previous_response_id' or 'conversation'."
    )


@pytest.mark.parametrize("other", [{"x-subject": "bob"}, {"x-tenant": "bolt"}])
async def test_somebody_elses_conversation_is_answered_like_one_that_does_not_exist(
    cwm: Gateway, other: dict[str, str]
) -> None:
    conversation = await created(cwm, items=[{**HEY, "id": "msg_a"}])
    attempts: tuple[tuple[str, str, Any], ...] = (
        ("GET", "", None),
        ("POST", "", {"metadata": {}}),
        ("GET", "/items", None),
        ("POST", "/items", {"items": [HEY]}),
        ("GET", "/items/msg_a", None),
        ("DELETE", "/items/msg_a", None),
        ("DELETE", "", None),
    )
    for method, path, body in attempts:
        theirs, nobodys = [
            await cwm.client.request(method, f"{PATH}/{which}{path}", headers=other, json=body)
            for which in (conversation, "conv_0")
        ]
        assert (theirs.status_code, theirs.text) == (404, nobodys.text.replace("conv_0", conversation))
        assert theirs.json()["error"]["type"] == "invalid_request_error"
    body = {"model": MODEL, "input": "hey", "conversation": conversation}
    assert (await cwm.client.post(RESPONSES, json=body, headers=other)).status_code == 404
    items = (await cwm.client.get(f"{PATH}/{conversation}/items")).json()["data"]
    assert [item["id"] for item in items] == ["msg_a"]


@pytest.mark.parametrize("odd", ["", "\0", "\ud800", "a" * 10_000, "../x", "%"])
async def test_an_id_that_no_conversation_can_have_is_not_found(cwm: Gateway, odd: str) -> None:
    body = {"model": MODEL, "input": "hey", "conversation": odd}
    refused = await cwm.client.post(RESPONSES, content=json.dumps(body))
    assert (refused.status_code, "not found" in refused.json()["error"]["message"]) == (404, True)
    in_path = odd.encode(errors="replace").hex() or "-"
    for end in (f"/{in_path}.", f"/{in_path}./items", f"/{await created(cwm)}/items/{in_path}."):
        assert (await cwm.client.get(PATH + end)).status_code == 404


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a" * 65: ""}}, "metadata"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": []}, "metadata"),
        ({"items": [HEY] * 21}, "items"),
        ({"items": "hey"}, "items"),
        ({"items": ["hey"]}, "items"),
        ({"items": [{"type": "item_reference", "id": "msg_a"}]}, "items"),
        ([], "body"),
    ],
)
async def test_what_no_conversation_can_be_is_refused(cwm: Gateway, body: Any, param: str) -> None:
    refused = await cwm.client.post(PATH, json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    "text", ['{"items": [{"role": "user", "content": NaN}]}', r'{"metadata": {"a": "\ud800"}}']
)
async def test_what_could_not_be_given_back_is_refused(cwm: Gateway, text: str) -> None:
    refused = await cwm.client.post(PATH, content=text)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "body")


@pytest.mark.parametrize("which", [1, [], {}, {"id": 1}])
async def test_a_conversation_is_named_by_an_id(cwm: Gateway, which: Any) -> None:
    refused = await cwm.client.post(RESPONSES, json={"model": MODEL, "input": "hey", "conversation": which})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "conversation")


async def test_media_in_a_conversation_are_held_to_the_rules_of_media_in_a_request(cwm: Gateway) -> None:
    part = {"type": "input_image", "image_url": "http://10.0.0.1/a.png"}
    conversation = await created(cwm, items=[{"role": "user", "content": [part]}])
    body = {"model": MODEL, "input": "hey", "conversation": conversation}
    refused = await cwm.client.post(RESPONSES, json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "CWM-1003")


async def test_the_name_that_a_client_gives_its_session_comes_before_its_conversation(
    cwm: Gateway,
) -> None:
    body = {"model": MODEL, "input": "hey", "conversation": await created(cwm)}
    for headers, session in (
        ({}, body["conversation"]),
        ({"x-session-id": "theirs"}, "theirs"),
        ({}, "theirs"),
        ({"CWM-Session-Id": "s1"}, "s1"),
        ({}, "s1"),
    ):
        answer = await cwm.client.post(RESPONSES, json=body, headers=headers)
        assert answer.headers["cwm-session-id"] == session


async def test_a_conversation_goes_with_its_session_and_not_the_other_way_round(cwm: Gateway) -> None:
    first, second = await created(cwm), await created(cwm)
    for conversation in (first, second):
        body = {"model": MODEL, "input": "hey", "conversation": conversation}
        assert (await cwm.client.post(RESPONSES, json=body)).headers["cwm-session-id"] == conversation
    await cwm.registry.remove_session(TENANT, first, cwm.turns.clock.now())
    assert (await cwm.client.get(f"{PATH}/{first}")).status_code == 404
    assert (await cwm.client.delete(f"{PATH}/{second}")).status_code == 200
    assert await cwm.tokens(second)


async def test_without_kept_messages_there_are_no_conversations(cwm: Gateway) -> None:
    cwm.turns.keep = KeepPolicies(KeepPolicy(messages=False))
    refused = await cwm.client.post(PATH, json={})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "CWM-1003")


async def test_what_writes_a_conversation_counts_as_a_request(vllm: FakeVllm, tmp_path: Path) -> None:
    rules = LimitRules(principal=(Rate(2, 60),))
    async with gateway(settings_for(vllm.url), tmp_path, rules=rules) as cwm:
        path = f"{PATH}/{await created(cwm)}"
        writes = [await cwm.client.post(f"{path}/items", json={"items": [HEY]}) for _ in range(2)]
        assert [answer.status_code for answer in writes] == [200, 429]
        assert writes[1].json()["error"]["code"] == "rate_limit_exceeded"
        assert (await cwm.client.get(path)).status_code == 200
