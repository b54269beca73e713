"""Clients with model names of their own: what the engine is asked for, and what the client reads."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from cwm.domain.engine_rules import EngineRules
from cwm.domain.model_aliases import ModelAliases
from tests.adapters.vllm.fake_vllm import MODEL, FakeVllm
from tests.transport.llm.gateway import TENANT, Gateway

pytestmark = pytest.mark.slow

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WANTED = "claude-\u00e9t\u00e9\\1"
SESSION = {"CWM-Session-Id": "s1"}
USAGE = {"stream_options": {"include_usage": True}}


@pytest.fixture(autouse=True)
def _aliases(cwm: Gateway) -> None:
    cwm.directory.aliases = ModelAliases({"claude-*": MODEL, "gpt": MODEL, "gone": "nobody", MODEL: "nobody"})


def request(path: str, **more: Any) -> dict[str, Any]:
    ask = {"messages": [{"role": "user", "content": "hey"}]} if path == CHAT else {"prompt": "hey"}
    return {"model": WANTED, **ask, **more}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("more", [{}, {"stream": True}, {"stream": True, **USAGE}])
@pytest.mark.parametrize("headers", [{}, SESSION])
async def test_an_alias_is_answered_by_its_model_under_the_name_that_was_asked(
    cwm: Gateway, vllm: FakeVllm, path: str, more: dict[str, Any], headers: dict[str, str]
) -> None:
    through = await cwm.client.post(path, json=request(path, **more), headers=headers)
    assert vllm.turns[-1].json["model"] == MODEL
    async with httpx2.AsyncClient(trust_env=False) as client:
        straight = await client.post(vllm.url + path, json=request(path, **more) | {"model": MODEL})
    name = b'"model":"claude-\\u00e9t\\u00e9\\\\1"'
    assert through.content == straight.content.replace(b'"model":"%b"' % MODEL.encode(), name)
    assert through.content.count(name) >= 1


async def test_a_session_keeps_the_served_model_under_whichever_of_its_names_it_is_asked(
    cwm: Gateway,
) -> None:
    for name in (WANTED, "gpt", MODEL):
        answer = await cwm.client.post(CHAT, json=request(CHAT, model=name), headers=SESSION)
        assert (answer.status_code, answer.json()["model"]) == (200, name)
    session = await cwm.registry.session(TENANT, "s1")
    assert session is not None
    assert session.model == MODEL


@pytest.mark.parametrize("name", ["nobody", "gone"])
async def test_a_name_that_leads_to_no_served_model_is_the_engines_error(cwm: Gateway, name: str) -> None:
    answer = await cwm.client.post(CHAT, json=request(CHAT, model=name), headers=SESSION)
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == f"The model `{name}` does not exist."


async def test_names_without_wildcards_are_listed_and_every_name_is_told(cwm: Gateway) -> None:
    (served,) = (await cwm.client.get("/v1/models")).json()["data"][:1]
    listed = (await cwm.client.get("/v1/models")).json()

    assert listed["object"] == "list"
    assert listed["data"] == [served, {**served, "id": "gpt"}]
    assert served["id"] == MODEL
    assert (await cwm.client.get("/v1/models/claude-opus-4")).json() == {**served, "id": "claude-opus-4"}
    assert (await cwm.client.get("/v1/models/gone")).status_code == 404


async def test_other_aliases_count_from_the_next_request_on(cwm: Gateway) -> None:
    cwm.directory.aliases = ModelAliases()
    assert (await cwm.client.post(CHAT, json=request(CHAT))).status_code == 404
    cwm.directory.aliases = ModelAliases({"*": MODEL})
    assert (await cwm.client.post(CHAT, json=request(CHAT))).status_code == 200


async def test_a_tenant_does_not_see_the_models_of_engines_that_are_for_others(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    cwm.directory.aliases = ModelAliases()
    cwm.directory.rules = {"": EngineRules(tenants=frozenset({"umbrella"}))}
    umbrella = {"x-tenant": "umbrella"}
    assert (await cwm.client.get("/v1/models")).json() == {"object": "list", "data": []}
    assert (await cwm.client.get(f"/v1/models/{MODEL}")).status_code == 404
    (listed,) = (await cwm.client.get("/v1/models", headers=umbrella)).json()["data"]
    assert listed["id"] == MODEL
    ask = request(CHAT, model=MODEL)
    refused = await cwm.client.post(CHAT, json=ask)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
    assert not vllm.turns
    assert (await cwm.client.post(CHAT, json=ask, headers=umbrella)).status_code == 200
