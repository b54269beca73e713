"""Examines several engines: whether each is there, and whether they agree on what they share."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cwm.domain.engine import deployment_by_name
from cwm.domain.engine_rules import NO_RULES, EngineRules
from cwm.domain.errors import CwmError
from cwm.ports.engine import Engine, Generation
from cwm.ports.kv_tier import KvTier, KvTierFacts
from cwm.services.health.examine_engine import PROBE_SALT, probe_ids
from cwm.services.health.findings import Findings

# Shorter than any chunk, so that nothing is stored.
_PROBE_TOKENS: Final = 8


@dataclass(slots=True)
class _Found:
    """What one engine says: its deployment and the path of its files by model, and what its LMCache server reports; ``cache_fault``: why that does not answer."""

    deployments: dict[str, str] = field(default_factory=dict)
    roots: dict[str, str] = field(default_factory=dict)
    fault: str = ""
    facts: KvTierFacts | None = None
    cache_fault: str = ""


async def examine_engines(
    findings: Findings, engine: Engine, kv_tier: KvTier, rules: Mapping[str, EngineRules]
) -> None:
    """``rules``: what the installation says of engines, by name."""
    names = engine.names()
    state_by_engine = dict(
        zip(
            names,
            await asyncio.gather(
                *(_look(engine.on(name), kv_tier.beside(name), rules.get(name, NO_RULES)) for name in names)
            ),
            strict=True,
        )
    )
    _engines(findings, state_by_engine)
    _deployments(findings, state_by_engine)
    await _caches(findings, state_by_engine, kv_tier)
    if routers := [name for name, each in rules.items() if each.is_router]:
        findings.ok(
            "routers",
            f"{', '.join(routers)}: the router chooses the engine; CWM neither moves nor drains sessions there, and none fails over",
        )


async def _look(engine: Engine, kv_tier: KvTier, rules: EngineRules) -> _Found:
    state = _Found()
    try:
        for model in await engine.models():
            probe = await probe_ids(engine, model, _PROBE_TOKENS)
            answer = await engine.complete(Generation(model.id, probe, PROBE_SALT, max_tokens=1))
            by_name = "" if answer.weights or not rules.deployment else deployment_by_name(rules.deployment)
            state.deployments[model.id] = by_name or answer.fingerprint or ""
            state.roots[model.id] = model.root
    except CwmError as error:
        state.fault = error.message
    try:
        state.facts = await kv_tier.facts()
    except CwmError as error:
        state.cache_fault = error.message
    return state


def _engines(findings: Findings, state_by_engine: Mapping[str, _Found]) -> None:
    faults = [f"{name}: {each.fault}" for name, each in state_by_engine.items() if each.fault]
    if faults:
        findings.fault(
            "engines", " ".join(faults), "Start these engines, or take them off `engines` in cwm.yaml."
        )
    elif not state_by_engine:
        findings.fault(
            "engines",
            "No name of engines has an address.",
            "Look the names of `dns` in cwm.yaml up from this machine.",
        )
    else:
        descriptions = (f"{name} ({', '.join(each.deployments)})" for name, each in state_by_engine.items())
        findings.ok("engines", f"all answer: {', '.join(descriptions)}")


def _deployments(findings: Findings, state_by_engine: Mapping[str, _Found]) -> None:
    """Sessions of a model whose engines differ are computed again on their way from one to the other."""
    engines: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, each in state_by_engine.items():
        for model, deployment in each.deployments.items():
            engines[model][f"{deployment} from {each.roots[model]}"].append(name)
    unequal = []
    for model, by_deployment in engines.items():
        if len(by_deployment) > 1:
            places = (f"{', '.join(names)} ({deployment})" for deployment, names in by_deployment.items())
            unequal.append(f"'{model}' on {'; '.join(places)}")
    if unequal:
        findings.warn(
            "deployments",
            f"Engines of one model differ in what KV depends on: {' and '.join(unequal)}. A session that goes from one to the other is computed again.",
            "Start them with equal options, versions and weights, and with the weights at one path. Without CWM's connector every option of vLLM counts, unless `deployment` of their entries names them.",
        )
    elif engines:
        findings.ok("deployments", "engines of one model may use each other's KV")


def _keyrings(state_by_engine: Mapping[str, _Found]) -> list[str]:
    """What one server seals and another cannot open, which that one takes for damaged."""
    rings = {
        name: each.facts.keyrings
        for name, each in state_by_engine.items()
        if each.facts is not None and each.facts.keyrings
    }
    return [
        f"What the LMCache server beside {one} seals, that beside {other} cannot open: their keyrings differ."
        for one, sealing in rings.items()
        for other, opening in rings.items()
        if not {ring[0] for ring in sealing} <= {key for ring in opening for key in ring}
    ]


async def _caches(findings: Findings, state_by_engine: Mapping[str, _Found], kv_tier: KvTier) -> None:
    faults = [f"{name}: {each.cache_fault}" for name, each in state_by_engine.items() if each.cache_fault]
    kinds: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    for name, each in state_by_engine.items():
        if each.facts is not None:
            kinds[each.facts.chunk_size, each.facts.hash_algorithm].append(name)
    if len(kinds) > 1:
        descriptions = (
            f"{', '.join(names)}: {chunk} tokens, {kind}" for (chunk, kind), names in kinds.items()
        )
        faults.append(f"LMCache servers differ in chunk size or hash algorithm ({'; '.join(descriptions)}).")
    faults += _keyrings(state_by_engine)
    if faults:
        findings.fault(
            "caches of engines",
            " ".join(faults),
            "One coordinator has one chunk size and one hash algorithm: start every LMCache server with both, with --coordinator-url of this coordinator, and with one keyring.",
        )
    elif kinds:
        ((chunk, kind), names), *_ = kinds.items()
        if (server_count := await _registered(kv_tier)) < len(names):
            findings.warn(
                "caches of engines",
                f"The coordinator knows {server_count} of the LMCache servers beside {len(names)} engines.",
                "Start every LMCache server with --coordinator-url of this coordinator. If engines share a server, this is as it should be.",
            )
            return
        findings.ok("caches of engines", f"one coordinator, chunks of {chunk} tokens, {kind}")


async def _registered(kv_tier: KvTier) -> int:
    try:
        return await kv_tier.registered() or 0
    except CwmError:
        return 0
