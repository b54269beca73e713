"""What is stored of a conversation has bounds: what a request goes on from, what is read at once, and what a user may keep."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any, Final

import openai
import pytest

from cwm.domain.conversation import Capture, CapturePolicies
from cwm.domain.limits import LimitRules
from cwm.domain.response import ContextLimit
from cwm.domain.session import SessionQuery
from tests.adapters.vllm.fake_vllm import MODEL, FakeVllm
from tests.transport.llm.gateway import TENANT, Gateway, gateway, settings_for

pytestmark = pytest.mark.slow

ALL: Final = CapturePolicies(Capture.ALL)
CONVERSATIONS: Final = "/v1/conversations"
RESPONSES: Final = "/v1/responses"
EMPTY: Final = {"role": "user", "content": [{"type": "input_text", "text": ""}] * 100}
HEY: Final = {"role": "user", "content": "hey"}
SMALL: Final = ContextLimit(weight=50_000, items=5)


def bounded(vllm: FakeVllm, folder: Path) -> Any:
    return gateway(settings_for(vllm.url), folder, capture=ALL, context_limit=SMALL)


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": [EMPTY, HEY], **fields}


async def test_a_response_goes_on_from_so_much_and_the_engine_is_not_asked_for_more(
    vllm: FakeVllm, tmp_path: Path
) -> None:
    async with bounded(vllm, tmp_path) as cwm:
        first = (await cwm.client.post(RESPONSES, json=ask())).json()["id"]
        turn_count = len(vllm.turns)
        refused = await cwm.client.post(RESPONSES, json=ask(previous_response_id=first))
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["cwm_code"]) == (
            413,
            "context_length_exceeded",
            "CWM-1005",
        )
        assert error["param"] == "previous_response_id"
        assert error["context"]["setting"] == "CWM_CHAINED_CONTEXT_MB"
        assert error["context"]["context_bytes"] > error["context"]["limit_bytes"] == SMALL.weight
        assert len(vllm.turns) == turn_count
        on = await cwm.client.post(RESPONSES, json=ask(previous_response_id=first, input="hey"))
        assert on.status_code == 200, "a small request fits"


async def test_a_conversation_holds_so_many_items_of_so_much(vllm: FakeVllm, tmp_path: Path) -> None:
    async with bounded(vllm, tmp_path) as cwm:
        items = f"{CONVERSATIONS}/{await created(cwm)}/items"
        assert (await cwm.client.post(items, json={"items": [HEY] * 5})).status_code == 200
        full = await cwm.client.post(items, json={"items": [HEY]})
        assert (full.status_code, full.json()["error"]["cwm_code"]) == (413, "CWM-1005")
        assert full.json()["error"]["context"]["setting"] == "CWM_CONVERSATION_ITEMS"
        other = await created(cwm)
        large = await cwm.client.post(f"{CONVERSATIONS}/{other}/items", json={"items": [EMPTY] * 3})
        assert (large.status_code, large.json()["error"]["cwm_code"]) == (413, "CWM-1005")
        refused = await cwm.client.post(CONVERSATIONS, json={"items": [EMPTY] * 3})
        assert refused.status_code == 413
        assert (await cwm.client.post(RESPONSES, json=ask(conversation=other))).status_code == 200
        turn_count = len(vllm.turns)
        again = await cwm.client.post(RESPONSES, json=ask(conversation=other))
        assert (again.status_code, again.json()["error"]["param"]) == (413, "conversation")
        assert len(vllm.turns) == turn_count
        item = (await cwm.client.get(f"{CONVERSATIONS}/{other}/items?limit=1")).json()["data"][0]["id"]
        assert (await cwm.client.delete(f"{CONVERSATIONS}/{other}/items/{item}")).status_code == 200
        assert (await cwm.client.get(f"{CONVERSATIONS}/{other}/items/{item}")).status_code == 404


@pytest.mark.parametrize(("weight", "status"), [(50_000, 200), (3_000, 413)])
async def test_an_item_of_an_earlier_answer_stands_for_so_much(
    vllm: FakeVllm, tmp_path: Path, weight: int, status: int
) -> None:
    limit = ContextLimit(weight=weight)
    async with gateway(settings_for(vllm.url), tmp_path, capture=ALL, context_limit=limit) as cwm:
        first = (await cwm.client.post(RESPONSES, json=ask(input="hey"))).json()
        reference = {"type": "item_reference", "id": first["output"][0]["id"]}
        answer = await cwm.client.post(RESPONSES, json=ask(input=[reference, HEY]))
        assert answer.status_code == status, answer.text
        if status != 200:
            assert answer.json()["error"]["cwm_code"] == "CWM-1005"


async def created(cwm: Gateway) -> str:
    return str((await cwm.client.post(CONVERSATIONS, json={})).json()["id"])


QUOTA: Final = 400_000


def chat(seed: int) -> dict[str, Any]:
    text = random.Random(seed).randbytes(100_000).hex()
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1}


@pytest.mark.parametrize(
    ("rules", "setting"),
    [
        (LimitRules(stored_principal=QUOTA), "CWM_STORED_PRINCIPAL_GB"),
        (LimitRules(stored_tenant=QUOTA), "CWM_STORED_TENANT_GB"),
    ],
)
async def test_a_user_who_stores_too_much_is_refused_before_the_engine_is_asked_until_something_is_deleted(
    vllm: FakeVllm, tmp_path: Path, rules: LimitRules, setting: str
) -> None:
    async with gateway(settings_for(vllm.url), tmp_path, rules=rules, capture=ALL) as cwm:
        sessions: list[str] = []
        refused = None
        async with asyncio.timeout(60):
            while refused is None:
                turn_count = len(vllm.turns)
                answer = await cwm.client.post("/v1/chat/completions", json=chat(len(sessions)))
                if answer.status_code == 200:
                    sessions.append(answer.headers["cwm-session-id"])
                    await cwm.turns_ended(sessions[-1])
                    cwm.pass_through.turns.storage.forget()  # type: ignore[union-attr]
                else:
                    refused = answer
        assert 2 <= len(sessions) <= 5
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["retryable"]) == (507, "CWM-4003", False)
        assert refused.headers["x-should-retry"] == "false"
        assert (error["context"]["quota_bytes"], error["context"]["setting"]) == (QUOTA, setting)
        assert error["context"]["used_bytes"] >= QUOTA
        assert len(vllm.turns) == turn_count
        assert len(await cwm.registry.sessions(TENANT, SessionQuery())) == len(sessions)
        assert (await cwm.client.post(CONVERSATIONS, json={})).status_code == 507
        off = await cwm.client.post("/v1/chat/completions", json=chat(0), headers={"CWM-Capture": "off"})
        assert off.status_code == 200, "what is not recorded takes no room"
        others = await cwm.client.post("/v1/chat/completions", json=chat(0), headers={"x-subject": "bob"})
        assert others.status_code == (200 if rules.stored_principal else 507)
        async with openai.AsyncOpenAI(base_url=f"{cwm.url}/v1", api_key="none") as sdk:
            with pytest.raises(openai.InternalServerError, match="the quota is"):
                await sdk.chat.completions.create(**chat(0))
        for session_id in sessions:
            await cwm.registry.remove_session(TENANT, session_id, cwm.turns.clock.now())
        cwm.pass_through.turns.storage.forget()  # type: ignore[union-attr]
        assert (await cwm.client.post("/v1/chat/completions", json=chat(0))).status_code == 200
