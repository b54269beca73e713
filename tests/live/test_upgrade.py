"""A rolling upgrade on two real engines: the windows of the old deployment thaw on the new one from KV that it has proven."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from cwm.domain.prefix import restorable_tokens
from tests.live.conftest import LiveGateway, served
from tests.live.engine import LiveEngine, running
from tests.live.talk import cached, talk, words

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

_BOUND_SECONDS = 120
_MODEL = "tiny"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveEngine]:
    """Two engines of one model, of which the second one computes with shorter numbers."""
    otherwise = {"dtype": "bfloat16"}
    with running(tmp_path_factory.mktemp("upgrade"), _MODEL, otherwise) as engine:
        yield engine


@pytest.fixture(scope="module")
def front(fleet: LiveEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGateway]:
    folder = tmp_path_factory.mktemp("gateway")
    config = folder / "cwm.yaml"
    entries = [
        f"  {each.name}: {{url: '{each.vllm_url}', lmcache: '{each.lmcache_url}'}}\n"
        for each in fleet.engines
    ]
    config.write_text("engines:\n" + "".join(entries))
    more = {"CWM_CONFIG": str(config), "CWM_RECONCILE_SECONDS": "1"}
    with served(fleet, folder / "cwm.db", "acme", **more) as running_gateway:
        yield running_gateway


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What became of a window and a session of the old deployment."""

    frozen: dict[str, Any]
    begun: dict[str, Any]
    done: dict[str, Any]
    again: dict[str, Any]
    """The window after that."""
    new_session_on: list[str]
    """The engines whose number of sessions has grown."""
    old_session: dict[str, Any]
    """Its next turn while its engine was there."""
    thawed: dict[str, Any]
    cold: dict[str, Any]
    """Its next turn after that."""
    cold_turn: dict[str, Any]
    window_tokens: int
    session_tokens: int


@pytest.fixture(scope="module")
def upgrade(fleet: LiveEngine, front: LiveGateway) -> Upgrade:
    return asyncio.run(_upgrade(fleet, front))


async def _upgrade(fleet: LiveEngine, front: LiveGateway) -> Upgrade:
    old, new = (each.name for each in fleet.engines)
    async with talk(front.url, front.model) as client:
        # While the new engine is drained everything begins on the old one.
        await client.tool("engine_drain", engine=new)
        to_freeze, window_ids = await client.fill(words(300))
        frozen = await client.tool("window_freeze", session_id=to_freeze, window_name="w")
        session, ids = await client.fill(words(400))
        await client.tool("engine_drain", engine=new, undo=True)

        begun = await client.tool("engine_upgrade", model=_MODEL, to=new)
        before = await _sessions(client)
        await client.fill(words(100))
        grown = [name for name, count in (await _sessions(client)).items() if count > before[name]]
        async with asyncio.timeout(_BOUND_SECONDS):
            while (done := await client.tool("engine_upgrade", model=_MODEL))["windows_left"]:
                pass
        again = await client.tool("window_status", window_name="w")
        prompt = [*ids, *words(20)]
        old_turn = await client.complete(prompt, session=session)
        with fleet.held_down("vllm", "lmcache"):
            async with asyncio.timeout(_BOUND_SECONDS):
                while (await _engine(client, old))["answers"]:
                    pass
            thawed = await client.tool("window_thaw", window_name="w")
            cold = await client.complete([*prompt, *old_turn["token_ids"], *words(20)], session=session)
            log = await client.tool("turn_log", session_id=session)
    return Upgrade(
        frozen,
        begun,
        done,
        again,
        grown,
        old_turn,
        thawed,
        cold,
        log["turns"][0],
        len(window_ids),
        len(ids),
    )


async def _sessions(client: Any) -> dict[str, int]:
    return {each["name"]: each["sessions"] for each in (await client.tool("engine_list"))["engines"]}


async def _engine(client: Any, name: str) -> dict[str, Any]:
    (engine,) = (await client.tool("engine_list", engine=name))["engines"]
    return dict(engine)


def test_both_deployments_are_shown_and_the_new_one_is_named(upgrade: Upgrade) -> None:
    deployments = upgrade.begun["engines"]
    assert set(deployments) == {"engine-1", "engine-2"}
    assert all(each.startswith("kv-") for each in deployments.values())
    assert deployments["engine-1"] != deployments["engine-2"] == upgrade.begun["deployment"]
    assert (upgrade.begun["windows_done"], upgrade.begun["windows_left"]) == (0, 1)


def test_a_new_session_goes_to_the_new_deployment_and_an_old_one_stays_warm(upgrade: Upgrade) -> None:
    assert upgrade.new_session_on == ["engine-2"]
    assert cached(upgrade.old_session) >= restorable_tokens(upgrade.session_tokens, 32)


def test_the_window_is_frozen_again_and_thaws_from_the_kv_of_the_new_deployment(upgrade: Upgrade) -> None:
    assert (upgrade.done["windows_done"], upgrade.done["windows_left"]) == (1, 0)
    assert upgrade.again["durability"] == "durable"
    assert upgrade.again["kv_cache"]["block_count"] == upgrade.frozen["block_count"] > 5
    assert upgrade.thawed["receipt"]["tokens_restored"] == restorable_tokens(upgrade.window_tokens, 32)
    assert upgrade.thawed["partial"] is False
    assert upgrade.thawed["verification"] == "exact"


def test_a_session_whose_deployment_is_gone_is_computed_and_that_is_said(upgrade: Upgrade) -> None:
    assert cached(upgrade.cold) == 0
    assert upgrade.cold_turn["missed"] == "another_engine"
