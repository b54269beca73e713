"""What is remembered of an engine, and what is asked again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from cwm.domain.engine import EngineIdentity
from cwm.domain.engine_rules import EngineRules
from cwm.domain.errors import (
    EngineConnectionError,
    EngineResponseError,
    InvalidParameterError,
    StorageReadError,
)
from cwm.domain.look import Distance
from cwm.domain.model_aliases import ModelAliases
from cwm.domain.noise import CANNOT_BE_JUDGED, Noise
from cwm.domain.prefix import TokenIds
from cwm.ports.engine import Completion, Engine, Generation, ServedModel
from cwm.ports.kv_tier import AttachedModel, KvTier, KvTierFacts
from cwm.ports.noise import NoiseRecords
from cwm.services.engines.directory import EngineDirectory

FACTS = KvTierFacts("0.5.6", 32, "blake3", (AttachedModel("/m", 1, 32),), ("valkey",), ("node0",))


@dataclass
class OneEngine:
    asked: int = 0
    weights: str | None = None
    starts: str | None = None
    fingerprint: str = "fp-1"

    def names(self) -> tuple[str, ...]:
        return ("",)

    def on(self, _name: str) -> OneEngine:
        return self

    async def models(self) -> list[ServedModel]:
        self.asked += 1
        return [ServedModel("m", "/m", 8192)]

    async def tokenize(self, _model: str, _text: str, **_options: Any) -> TokenIds:
        return (1, 2, 3)

    async def complete(self, _request: Generation) -> Completion:
        return Completion("", (1,), "length", 3, 0, self.fingerprint, weights=self.weights)

    async def version(self) -> str:
        return "0.32.0"

    async def kv_dtype(self) -> str:
        return "auto"

    async def started(self) -> str | None:
        return self.starts

    async def chat_template(self, _model: str) -> str | None:
        return None


@dataclass
class SlowStarter:
    """An LMCache that refuses connections until it is there; None where none is configured."""

    facts_told: KvTierFacts | None = FACTS
    is_there: bool = False
    looks: list[bool] = field(default_factory=list)

    def beside(self, _engine: str) -> SlowStarter:
        return self

    async def facts(self) -> KvTierFacts | None:
        self.looks.append(self.is_there)
        if self.facts_told is not None and not self.is_there:
            raise EngineConnectionError("LMCache does not answer.")
        return self.facts_told


def directory(engine: OneEngine, tier: SlowStarter, weights_digest: str = "") -> EngineDirectory:
    return EngineDirectory(
        cast("Engine", engine), cast("KvTier", tier), secret=b"a secret", weights_digest=weights_digest
    )


async def salt_of(engine: OneEngine, weights_digest: str = "") -> str:
    """Of one scope, by a gateway that has just started."""
    known = directory(engine, SlowStarter(is_there=True), weights_digest)
    return known.salt("acme", "s1", await known.identity("m"))


@dataclass
class LoudRecords:
    """Looks at the same KV differed by 1.2 nats on every engine; ``away``: a database that does not answer."""

    away: bool = False

    async def noise(self, _engine: str) -> Noise:
        if self.away:
            raise StorageReadError("The database does not answer.")
        return Noise().plus([Distance(16, 8, 1.2, 0.3)] * 64, 1.2)


async def test_an_engine_that_is_too_noisy_stays_so_while_the_records_cannot_be_read() -> None:
    records = LoudRecords()
    known = directory(OneEngine(weights="w-1"), SlowStarter(is_there=True))
    known.noise = cast("NoiseRecords", records)
    assert (await known.identity("m")).no_reuse == CANNOT_BE_JUDGED
    records.away = True
    known.forget()
    identity = await known.identity("m")
    assert (identity.no_reuse, identity.stored_chunk) == (CANNOT_BE_JUDGED, None)


async def test_an_engine_whose_lmcache_is_not_there_yet_is_not_remembered_as_one_without() -> None:
    tier = SlowStarter()
    known = directory(OneEngine(), tier)
    assert (await known.identity("m")).chunk_size is None
    tier.is_there = True
    assert (await known.identity("m")).chunk_size == 32


async def test_an_engine_without_lmcache_is_asked_once() -> None:
    engine = OneEngine()
    known = directory(engine, SlowStarter(facts_told=None))
    for _ in range(3):
        assert (await known.identity("m")).chunk_size is None
    assert engine.asked == 1


async def test_an_engine_is_asked_once_whatever_names_its_model_has() -> None:
    engine = OneEngine()
    known = directory(engine, SlowStarter(is_there=True))
    known.aliases = ModelAliases({"claude-*": "m"})
    identities = [await known.asked_for(f"claude-{number}", "acme") for number in range(100)]
    assert {identity.model for identity in identities} == {"m"}
    assert await known.identity("m") == await known.asked_for("m", "acme") == identities[0]
    assert engine.asked <= 2


async def test_a_model_that_is_gone_is_no_other_one_whatever_callers_may_say() -> None:
    known = directory(OneEngine(), SlowStarter(is_there=True))
    known.aliases = ModelAliases({"*": "m"})
    with pytest.raises(InvalidParameterError):
        await known.identity("gone")
    assert (await known.asked_for("gone", "acme")).model == "m"


async def test_an_engine_that_lmcache_does_not_list_yet_is_not_remembered_without_its_block_size() -> None:
    engine, tier = OneEngine(), SlowStarter(replace(FACTS, attached=()), is_there=True)
    known = directory(engine, tier)
    assert (await known.identity("m")).block_size is None
    tier.facts_told = FACTS
    assert (await known.identity("m")).block_size == 32
    asked = engine.asked
    await known.identity("m")
    assert engine.asked == asked


async def test_what_an_engine_says_of_its_weights_is_believed_before_the_settings() -> None:
    known = directory(OneEngine(weights="w-1"), SlowStarter(is_there=True), "from the settings")
    assert (await known.identity("m")).weights_digest == "w-1"
    known = directory(OneEngine(), SlowStarter(is_there=True), "from the settings")
    assert (await known.identity("m")).weights_digest == "from the settings"


@pytest.mark.parametrize(("fingerprint", "expected"), [("kv-1", "kv-1"), ("vllm-0.32.0-abc", "w-1")])
async def test_requests_name_the_deployment_where_the_engine_tells_it_else_its_weights(
    fingerprint: str, expected: str
) -> None:
    known = directory(OneEngine(weights="w-1", fingerprint=fingerprint), SlowStarter(is_there=True))
    assert (await known.identity("m")).expected == expected


async def test_engines_of_one_deployment_by_name_share_kv_although_their_fingerprints_differ() -> None:
    async def identity(fingerprint: str, deployment: str, weights: str | None = None) -> EngineIdentity:
        engine = OneEngine(fingerprint=fingerprint, weights=weights)
        known = directory(engine, SlowStarter(is_there=True), "from the settings")
        known.rules = {"": EngineRules(deployment=deployment)}
        found = await known.identity("m")
        known.confirm(found, await engine.complete(cast("Generation", None)))
        return found

    one = await identity("fp-1", "large, bf16")
    assert one == await identity("fp-2", "large, bf16")
    assert one != await identity("fp-1", "large, fp8")
    reported = await identity("kv-1", "large, bf16", weights="w-1")
    assert (reported.fingerprint, reported.weights_digest) == ("kv-1", "w-1"), "what it reports counts"


async def test_kv_of_an_engine_whose_weights_nobody_knows_is_not_used_after_its_next_start() -> None:
    first = await salt_of(OneEngine(starts="1764099000.1"))
    assert await salt_of(OneEngine(starts="1764099000.1")) == first
    assert await salt_of(OneEngine(starts="1764099777.2")) != first
    assert await salt_of(OneEngine()) != await salt_of(OneEngine()), "not even its start is known"


async def test_an_answer_of_other_weights_is_that_of_another_engine_and_the_next_look_sees_it() -> None:
    engine = OneEngine(weights="w-1")
    known = directory(engine, SlowStarter(is_there=True))
    before = await known.identity("m")
    engine.weights = "w-2"
    with pytest.raises(EngineResponseError, match="The engine changed") as changed:
        known.confirm(before, await engine.complete(cast("Generation", None)))
    assert changed.value.context == {"expected": "w-1", "answered": "w-2"}
    assert (await known.identity("m")).weights_digest == "w-2"
