"""A router that stands in for several engines: what it is told of a session, and what it says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from cwm.adapters.sql.database import Database, open_database
from cwm.adapters.vllm.client import VllmEngine
from cwm.domain.engine_rules import EngineRules
from cwm.domain.turn import TurnQuery
from cwm.ports.engine import Generation
from cwm.settings.engines import EngineEntry
from tests.adapters.vllm.fake_vllm import MODEL, FakeVllm, fake_vllm
from tests.services.replicas_of import ANN
from tests.services.windows_of import gateway as services
from tests.transport.llm.gateway import Gateway, gateway, settings_for

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
NAMES = ("x-session-id", "x-dynamo-session-id", "x-session-token")
ASK = {"model": MODEL, "messages": [{"role": "user", "content": "hey"}]}
SESSION = {"CWM-Session-Id": "s1"}


def routed(url: str) -> EngineEntry:
    return EngineEntry(**dict(settings_for(url)), rules=EngineRules(is_router=True))


@pytest.fixture
async def vllm() -> AsyncIterator[FakeVllm]:
    async with fake_vllm() as fake:
        yield fake


@pytest.fixture
async def cwm(vllm: FakeVllm, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with gateway(routed(vllm.url), tmp_path) as running:
        yield running


@pytest.fixture
async def sqlite(sqlite_url: str) -> AsyncIterator[Database]:
    opened = open_database(sqlite_url)
    yield opened
    await opened.dispose()


def told(vllm: FakeVllm) -> list[str | None]:
    return [vllm.turns[-1].headers.get(name) for name in NAMES]


async def test_a_turn_names_its_session_and_brings_back_the_token_of_the_answer_before(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    vllm.answer_headers = "x-session-token: t-1\r\nx-vllm-router-decision: w-2\r\n"
    first = await cwm.client.post(CHAT, json=ASK, headers=SESSION)
    assert told(vllm) == ["s1", "s1", None]
    assert "x-vllm-router-decision" not in first.headers, "it may name an address inside"
    vllm.answer_headers = ""
    for more in ({}, {"stream": True}):
        await cwm.client.post(CHAT, json=ASK | more, headers=SESSION)
        assert told(vllm) == ["s1", "s1", "t-1"]
    await cwm.client.post(CHAT, json=ASK, headers=SESSION | {"x-tenant": "umbrella"})
    assert told(vllm) == ["s1", "s1", None], "the token is the other tenant's"


@pytest.mark.parametrize("name", ["x-vllm-router-decision", "X-Gateway-Destination-Endpoint-Served"])
@pytest.mark.parametrize("more", [{}, {"stream": True}])
async def test_the_record_of_a_turn_says_what_the_router_chose(
    cwm: Gateway, vllm: FakeVllm, name: str, more: dict[str, bool]
) -> None:
    for decision in ("10.0.0.7:8000", "w" * 1000, ""):
        vllm.answer_headers = f"{name}: {decision}\r\n"
        await cwm.client.post(CHAT, json=ASK | more, headers=SESSION)
    turns = await cwm.registry.turns("acme", "s1", TurnQuery())
    assert [turn.router_decision for turn in turns] == [None, "w" * 200, "10.0.0.7:8000"]


async def test_the_record_of_a_turn_in_token_ids_says_it_too(vllm: FakeVllm, sqlite: Database) -> None:
    vllm.answer_headers = "x-vllm-router-decision: w-2\r\n"
    router = VllmEngine(routed(vllm.url))
    cwm = services(sqlite, served=router)
    await cwm.open_session(ANN, "s1")
    await cwm.says("s1", "Hello.")
    (turn,) = await cwm.registry.turns("acme", "s1", TurnQuery())
    assert turn.router_decision == "w-2"
    await cwm.settle()
    await router.aclose()


async def test_nothing_that_an_engine_says_is_the_decision_of_a_router(
    vllm: FakeVllm, tmp_path: Path
) -> None:
    vllm.answer_headers = "x-vllm-router-decision: w-2\r\n"
    async with gateway(settings_for(vllm.url), tmp_path) as cwm:
        await cwm.client.post(CHAT, json=ASK, headers=SESSION)
        (turn,) = await cwm.registry.turns("acme", "s1", TurnQuery())
    assert turn.router_decision is None


async def test_a_client_does_not_choose_what_a_router_is_told(cwm: Gateway, vllm: FakeVllm) -> None:
    own = dict.fromkeys(NAMES, "chosen")
    await cwm.client.post(CHAT, json=ASK, headers=own)
    assert told(vllm) == [None, None, None]
    await cwm.client.post(CHAT, json=ASK, headers=own | SESSION)
    assert told(vllm) == ["s1", "s1", None]


async def test_a_turn_in_token_ids_is_told_alike_and_an_engine_is_told_nothing(vllm: FakeVllm) -> None:
    generation = Generation(MODEL, (1, 2, 3), "salt-1", 4, session=("acme", "s1"))
    vllm.answer_headers = "x-session-token: t-1\r\n"
    router = VllmEngine(routed(vllm.url))
    async for _ in router.stream(generation):
        pass
    await router.complete(generation)
    assert told(vllm) == ["s1", "s1", "t-1"]
    await router.complete(replace(generation, session=None))
    assert told(vllm) == [None, None, None]
    await router.aclose()
    engine = VllmEngine(settings_for(vllm.url))
    await engine.complete(generation)
    assert told(vllm) == [None, None, None]
    await engine.aclose()
