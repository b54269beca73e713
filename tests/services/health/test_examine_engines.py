"""What the doctor finds about several engines."""

from __future__ import annotations

from typing import Any, cast

from cwm.adapters.vllm.fleet import VllmFleet
from cwm.domain.engine_rules import EngineRules
from cwm.services.health.examine_engines import examine_engines
from cwm.services.health.findings import Finding, Findings, FindingStatus
from tests.fakes.engine import FakeEngine
from tests.fakes.kv_tier import FakeKvTier

OK, WARN, FAULT = FindingStatus.OK, FindingStatus.WARN, FindingStatus.FAULT


async def found(
    tier: FakeKvTier, rules: dict[str, EngineRules] | None = None, **engines: FakeEngine
) -> dict[str, Finding]:
    findings = Findings()
    await examine_engines(findings, VllmFleet(cast("Any", engines)), tier, rules or {})
    return {finding.name: finding for finding in findings.made}


def two_servers(chunk_size: int = 32) -> FakeKvTier:
    return FakeKvTier(servers={"b": FakeKvTier(chunk_size=chunk_size)})


async def test_engines_that_agree_are_well() -> None:
    findings = await found(two_servers(), a=FakeEngine(), b=FakeEngine())
    assert {name: finding.status for name, finding in findings.items()} == {
        "engines": OK,
        "deployments": OK,
        "caches of engines": OK,
    }
    assert findings["engines"].message == "all answer: a (tiny), b (tiny)"


async def test_an_engine_that_is_away_is_named() -> None:
    findings = await found(two_servers(), a=FakeEngine(), b=FakeEngine(away=True))
    assert findings["engines"].status is FAULT
    assert findings["engines"].message == "b: vLLM does not answer."


async def test_engines_of_one_model_and_unequal_deployments_are_a_warning() -> None:
    a, b = FakeEngine(fingerprint="kv-1"), FakeEngine(fingerprint="kv-2")
    findings = await found(two_servers(), a=a, b=b, c=FakeEngine(model="large", fingerprint="kv-3"))
    assert findings["deployments"].status is WARN
    assert (
        "'tiny' on a (kv-1 from /models/tiny); b (kv-2 from /models/tiny)" in findings["deployments"].message
    )
    assert "large" not in findings["deployments"].message


async def test_equal_models_at_unequal_paths_are_a_warning() -> None:
    rules = {name: EngineRules(deployment="tiny, float32") for name in ("a", "b")}
    engines = {name: FakeEngine(weights=None, root=f"/{name}/tiny") for name in ("a", "b")}
    findings = await found(two_servers(), rules, **engines)
    assert findings["deployments"].status is WARN
    assert "from /a/tiny); b (" in findings["deployments"].message
    assert "at one path" in findings["deployments"].fix


async def test_a_deployment_by_name_stands_for_a_fingerprint_of_vllms_own() -> None:
    a = FakeEngine(fingerprint="vllm-1", weights=None)
    b = FakeEngine(fingerprint="vllm-2", weights=None)
    rules = {name: EngineRules(deployment="tiny, float32") for name in ("a", "b")}
    assert (await found(two_servers(), a=a, b=b))["deployments"].status is WARN
    assert (await found(two_servers(), rules, a=a, b=b))["deployments"].status is OK


async def test_one_coordinator_has_one_chunk_size_and_knows_every_server() -> None:
    differ = (await found(two_servers(64), a=FakeEngine(), b=FakeEngine()))["caches of engines"]
    assert differ.status is FAULT
    assert "a: 32 tokens, blake3; b: 64 tokens, blake3" in differ.message
    alone = (await found(FakeKvTier(), a=FakeEngine(), b=FakeEngine()))["caches of engines"]
    assert alone.status is WARN
    assert "knows 1 of the LMCache servers beside 2 engines" in alone.message


async def test_a_router_is_said_to_choose_by_itself() -> None:
    findings = await found(FakeKvTier(), {"pool": EngineRules(is_router=True)}, pool=FakeEngine())
    assert findings["routers"].status is OK
    assert "neither moves nor drains" in findings["routers"].message
