"""What is remembered of an engine, and what is asked again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

from cwm.domain.errors import EngineConnectionError
from cwm.domain.prefix import TokenIds
from cwm.ports.engine import Completion, Engine, Generation, ServedModel
from cwm.ports.kv_tier import AttachedModel, KvTier, KvTierFacts
from cwm.services.engines.directory import EngineDirectory

FACTS = KvTierFacts("0.5.6", 32, "blake3", (AttachedModel("/m", 1, 32),), ("valkey",), ("node0",))


@dataclass
class OneEngine:
    asked: int = 0

    async def models(self) -> list[ServedModel]:
        self.asked += 1
        return [ServedModel("m", "/m", 8192)]

    async def tokenize(self, _model: str, _text: str, **_options: Any) -> TokenIds:
        return (1, 2, 3)

    async def complete(self, _request: Generation) -> Completion:
        return Completion("", (1,), "length", 3, 0, "fp-1")

    async def version(self) -> str:
        return "0.32.0"

    async def kv_dtype(self) -> str:
        return "auto"

    async def chat_template(self, _model: str) -> str | None:
        return None


@dataclass
class SlowStarter:
    """An LMCache that refuses connections until it is there; None where none is configured."""

    facts_told: KvTierFacts | None = FACTS
    is_there: bool = False
    looks: list[bool] = field(default_factory=list)

    async def facts(self) -> KvTierFacts | None:
        self.looks.append(self.is_there)
        if self.facts_told is not None and not self.is_there:
            raise EngineConnectionError("LMCache does not answer.")
        return self.facts_told


def directory(engine: OneEngine, tier: SlowStarter) -> EngineDirectory:
    return EngineDirectory(
        cast("Engine", engine), cast("KvTier", tier), secret=b"a secret", weights_digest=""
    )


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


async def test_an_engine_that_lmcache_does_not_list_yet_is_not_remembered_without_its_block_size() -> None:
    engine, tier = OneEngine(), SlowStarter(replace(FACTS, attached=()), is_there=True)
    known = directory(engine, tier)
    assert (await known.identity("m")).block_size is None
    tier.facts_told = FACTS
    assert (await known.identity("m")).block_size == 32
    asked = engine.asked
    await known.identity("m")
    assert engine.asked == asked
