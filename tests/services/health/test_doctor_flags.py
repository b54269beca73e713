"""What the doctor finds wrong with an engine names the flag that mends it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from cwm.adapters.sql.database import open_database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.domain.errors import EngineConnectionError, InvalidParameterError
from cwm.ports.engine import Completion, Generation
from cwm.ports.kv_tier import KvTierFacts
from cwm.services.health.doctor import Doctor
from cwm.services.health.findings import Finding, FindingStatus
from tests.fakes.engine import FakeEngine
from tests.fakes.kv_tier import FakeKvTier
from tests.services.replicas_of import HandClock

pytestmark = pytest.mark.slow


class HastyClock(HandClock):
    """A second passes with every look, so that nothing is waited for."""

    def monotonic(self) -> float:
        self.seconds += 1
        return self.seconds


@dataclass
class Bare(FakeEngine):
    """A vLLM that was started with ``--kv-transfer-config`` of the stock connector and none of CWM's other flags."""

    weights: str | None = None

    async def complete(self, generation: Generation) -> Completion:
        return replace(await super().complete(generation), cached_tokens=0)

    async def special_tokens(self, model: str) -> frozenset[str]:
        return frozenset()

    async def require_tools(self, model: str, tools: Sequence[Mapping[str, Any]]) -> bool:
        raise InvalidParameterError('"auto" tool choice requires --enable-auto-tool-choice', field="tools")

    async def abort(self, generation_ids: Sequence[str]) -> bool:
        return False


@dataclass
class BareTier(FakeKvTier):
    """An LMCache with other chunks than vLLM's blocks, in no coordinator, whose only adapter has no serde."""

    coordinator_chunk: int = 64

    async def facts(self) -> KvTierFacts | None:
        facts = await super().facts()
        assert facts is not None
        models = tuple(replace(model, block_size=16) for model in facts.attached)
        return replace(facts, attached=models, instances=(), bare_adapters=facts.adapters)

    async def coordinator_chunk_size(self) -> int | None:
        return self.coordinator_chunk


class TierWithoutCoordinator(FakeKvTier):
    """Its servers answer."""

    async def facts(self) -> KvTierFacts | None:
        raise EngineConnectionError("LMCache does not answer at the coordinator.")


Find = Callable[[FakeEngine, FakeKvTier], Awaitable[dict[str, Finding]]]


@pytest.fixture
async def found(sqlite_url: str) -> AsyncIterator[Find]:
    """The findings about an engine and an LMCache, by their names."""
    database = open_database(sqlite_url)
    yield lambda engine, tier: _found(SqlRegistry(database), engine, tier)
    await database.dispose()


async def _found(registry: SqlRegistry, engine: FakeEngine, tier: FakeKvTier) -> dict[str, Finding]:
    async def schema() -> tuple[bool, str]:
        return True, "reachable"

    async def no_clock() -> None:
        return None

    doctor = Doctor(registry, engine, tier, HastyClock(), schema, no_clock)
    return {finding.name: finding for finding in (await doctor()).findings}


@pytest.mark.parametrize(
    ("check", "flag"),
    [
        ("cached tokens", "--enable-prompt-tokens-details"),
        ("weights", '"kv_connector_module_path":"cwm_engine.connector" in --kv-transfer-config'),
        ("control tokens", "--enable-tokenizer-info-endpoint"),
        ("tools", "--enable-auto-tool-choice"),
        ("aborts", "--enable-scale-out"),
    ],
)
async def test_what_vllm_was_not_started_with_is_named(found: Find, check: str, flag: str) -> None:
    finding = (await found(Bare(), FakeKvTier()))[check]

    assert finding.status in {FindingStatus.WARN, FindingStatus.FAULT}
    assert flag in finding.fix


async def test_agents_that_will_be_refused_are_named(found: Find) -> None:
    refused, served = [(await found(engine, FakeKvTier()))["tools"] for engine in (Bare(), FakeEngine())]

    assert refused.message.startswith("Agents that use tools will be refused: ")
    assert (served.status, served.message) == (FindingStatus.OK, "agents that use tools are served")


@pytest.mark.parametrize(
    ("check", "flag"),
    [
        ("instances", "--coordinator-url"),
        ("serde", '"serde":{"type":"cwm-seal"'),
        ("block size", "--block-size 32"),
        ("coordinator", "--chunk-size 32"),
    ],
)
async def test_what_lmcache_and_its_coordinator_were_not_started_with_is_named(
    found: Find, check: str, flag: str
) -> None:
    tier = BareTier()
    finding = (await found(FakeEngine(tier), tier))[check]

    assert finding.status is FindingStatus.FAULT
    assert flag in finding.fix


@pytest.mark.parametrize(
    ("adapters", "flag"),
    [((), "--l2-adapter"), (("resp",), '"type":"valkey" in --l2-adapter'), (("fs_native",), "--l2-adapter")],
)
async def test_a_missing_tier_is_named_with_its_flag(
    found: Find, adapters: tuple[str, ...], flag: str
) -> None:
    tier = FakeKvTier(adapters=adapters)
    finding = (await found(FakeEngine(tier), tier))["adapters"]

    assert finding.status in {FindingStatus.WARN, FindingStatus.FAULT}
    assert flag in finding.fix


async def test_an_lmcache_to_which_vllm_is_not_attached_is_told_how_vllm_is_started(found: Find) -> None:
    finding = (await found(FakeEngine(FakeKvTier(present=False)), FakeKvTier()))["attached"]

    assert finding.status is FindingStatus.FAULT
    assert "--kv-transfer-config" in finding.fix
    assert "cwm engine command" in finding.fix


async def test_a_coordinator_that_is_away_is_named_with_what_goes_on_without_it(found: Find) -> None:
    tier = TierWithoutCoordinator()
    findings = await found(FakeEngine(tier), tier)
    away = FakeKvTier(away=True)
    all_away = await found(FakeEngine(away), away)

    assert findings["lmcache"].status is FindingStatus.OK
    assert findings["coordinator"].status is FindingStatus.FAULT
    assert "turns, new sessions, thaws and moves go on" in findings["coordinator"].message
    assert all_away["lmcache"].status is FindingStatus.FAULT
