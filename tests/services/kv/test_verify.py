"""Looks at KV, recorded and compared, on an engine in memory whose looks differ as much as a test says."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.kv.noise import SqlNoise
from cwm.domain.canary import Canary, Origin
from cwm.domain.engine import EngineIdentity, engine_key
from cwm.domain.errors import EngineConnectionError, EngineResponseError, InvalidParameterError
from cwm.domain.look import Distance
from cwm.domain.verdict import Verification
from cwm.services.engines.directory import EngineDirectory
from cwm.services.kv.noises import Noises
from cwm.services.kv.prefix import Prefix
from cwm.services.kv.verify import Verify
from tests.fakes.engine import FakeEngine
from tests.fakes.kv_tier import Copy
from tests.services.windows_of import Ticking

CHUNKS = 20
CHUNK = 32
SURVEYED = 135
"""Comparisons of two looks with two others, among twelve."""


@dataclass(slots=True)
class Looked:
    """An engine that can be looked at, and what looks at it."""

    engine: FakeEngine
    verify: Verify
    noises: Noises
    identity: EngineIdentity
    salt: str = "salt"
    ids: tuple[int, ...] = field(default_factory=lambda: tuple(range(20, 20 + CHUNKS * CHUNK + 3)))

    @property
    def prefix(self) -> Prefix:
        return Prefix(self.ids, self.salt, self.identity)

    async def recorded(self, proven_tokens: int = 0) -> Canary:
        recording = await self.verify.record(self.prefix, proven_tokens)
        assert recording.canary is not None
        return recording.canary

    async def restored(self) -> None:
        """The engine has the context from the cache beside it, and no KV that it computed itself."""
        while await self.engine.kv_tier.storing():
            pass
        self.engine.restart()
        await self.engine.complete(self.prefix.request())

    async def noise(self) -> int:
        """How many pairs of looks are known."""
        return len((await self.noises.of(self.identity)).pairs)


@pytest.fixture
async def looked(sqlite: Database) -> Looked:
    engine = FakeEngine()
    directory = EngineDirectory(engine, engine.kv_tier, secret=b"a test's secret", weights_digest="")
    noises = Noises(engine, directory, SqlNoise(sqlite), Ticking())
    identity = await directory.identity()
    return Looked(engine, Verify(engine, directory, noises, most_places=64), noises, identity)


pytestmark = pytest.mark.slow


async def test_a_canary_is_a_look_behind_every_chunk_with_the_origin_of_its_kv(looked: Looked) -> None:
    canary = await looked.recorded()
    last = CHUNKS * CHUNK + 1
    assert canary.look.places[:CHUNKS] == tuple(number * CHUNK + 1 for number in range(1, CHUNKS + 1))
    assert canary.sure_places == canary.look.places[CHUNKS - 1 :] == tuple(range(last, last + 8))
    assert canary.origin is Origin.COMPUTED
    assert looked.engine.looks == 2


@pytest.mark.parametrize(
    ("proven", "origin"), [(0, Origin.UNPROVEN), (CHUNK, Origin.UNPROVEN), (CHUNKS * CHUNK, Origin.INHERITED)]
)
async def test_a_canary_of_loaded_kv_inherits_what_is_proven_of_all_of_it(
    looked: Looked, proven: int, origin: Origin
) -> None:
    await looked.recorded()
    await looked.restored()
    assert (await looked.recorded(proven)).origin is origin


async def test_a_canary_that_the_engine_could_not_be_looked_at_for_is_none(looked: Looked) -> None:
    looked.engine.evicts_looks = True
    recording = await looked.verify.record(looked.prefix)
    assert (recording.canary, recording.answer.prompt_tokens) == (None, len(looked.ids))


async def test_without_canaries_the_engine_is_asked_and_not_looked_at(looked: Looked) -> None:
    looked.verify = replace(looked.verify, most_places=0)
    assert (await looked.verify.record(looked.prefix)).canary is None
    assert (looked.engine.looks, looked.engine.requests[-1].token_ids) == (0, looked.ids)


async def test_a_context_without_a_whole_chunk_has_no_canary(looked: Looked) -> None:
    looked.ids = looked.ids[:CHUNK]
    assert (await looked.verify.record(looked.prefix)).canary is None


async def test_an_engine_that_became_another_records_nothing(looked: Looked) -> None:
    looked.engine.fingerprint = "fp-2"
    with pytest.raises(EngineResponseError, match="changed while"):
        await looked.verify.record(looked.prefix)


async def test_right_kv_is_exact_after_one_look_at_the_probes(looked: Looked) -> None:
    canary = await looked.recorded()
    await looked.restored()
    looked.engine.looks = 0
    comparison = await looked.verify.compare(looked.prefix, canary)
    assert comparison.evidence.verification is Verification.EXACT
    assert comparison.evidence.distance == Distance(8, agreed=CHUNKS * CHUNK + 7)
    assert (looked.engine.looks, len(comparison.looks), await looked.noise()) == (1, 1, 0)


async def test_a_look_that_differs_has_the_engines_noise_measured_which_may_explain_it(
    looked: Looked,
) -> None:
    looked.engine.noise = 0.1
    canary = await looked.recorded()
    comparison = await looked.verify.compare(looked.prefix, canary)
    assert comparison.evidence.verification is Verification.WITHIN_NOISE
    assert [len(look.places) for look in comparison.looks] == [8]
    assert comparison.evidence.limits is not None
    assert 0.001 < comparison.evidence.limits.largest < 0.2
    assert await looked.noise() == SURVEYED


async def test_what_noise_does_not_explain_is_looked_at_twice_more_at_every_place(looked: Looked) -> None:
    canary = await looked.recorded()
    await looked.noises.measured(looked.identity)
    looked.engine.noise = 2.0
    comparison = await looked.verify.compare(looked.prefix, canary)
    assert comparison.evidence.verification is Verification.UNDECIDED
    assert [len(look.places) for look in comparison.looks] == [8, CHUNKS + 7, 8, CHUNKS + 7, 8]
    assert await looked.noise() == SURVEYED + 1


async def test_noise_is_measured_once_and_other_gateways_know_it(looked: Looked, sqlite: Database) -> None:
    looked.engine.noise = 0.1
    canary = await looked.recorded()
    await looked.verify.compare(looked.prefix, canary)
    other = replace(looked.noises, _known={})
    looks = looked.engine.looks
    await replace(looked.verify, noises=other).compare(looked.prefix, canary)
    assert looked.engine.looks == looks + 1
    assert len((await SqlNoise(sqlite).noise(engine_key(looked.identity))).pairs) == SURVEYED


async def test_comparisons_at_once_measure_the_noise_once(looked: Looked) -> None:
    looked.engine.noise = 0.1
    canary = await looked.recorded()
    await asyncio.gather(*(looked.verify.compare(looked.prefix, canary) for _ in range(3)))
    assert await looked.noise() == SURVEYED


@pytest.mark.parametrize("at", [0, 9, CHUNKS - 1])
async def test_wrong_kv_behind_any_chunk_asks_for_a_control(looked: Looked, at: int) -> None:
    canary = await looked.recorded()
    while await looked.engine.kv_tier.storing():
        pass
    looked.engine.kv_tier.damage(looked.prefix.key, at, Copy.FORGED)
    await looked.restored()
    evidence = (await looked.verify.compare(looked.prefix, canary)).evidence
    assert (evidence.verification, evidence.reason) == (Verification.UNDECIDED, "")
    assert evidence.distance.last > 0


async def test_an_engine_whose_noise_hides_damage_decides_nothing(looked: Looked) -> None:
    """Limits of what it does by itself would allow what damage does."""
    looked.engine.noise = 40.0
    canary = await looked.recorded()
    for _ in range(3):
        evidence = (await looked.verify.compare(looked.prefix, canary)).evidence
        assert evidence.verification in {Verification.EXACT, Verification.UNDECIDED}
        assert evidence.limits is None
    assert (await looked.noises.of(looked.identity)).is_too_large


async def test_an_unproven_canary_says_nothing_of_kv_that_equals_it(looked: Looked) -> None:
    canary = replace(await looked.recorded(), origin=Origin.UNPROVEN)
    evidence = (await looked.verify.compare(looked.prefix, canary)).evidence
    assert (evidence.verification, evidence.origin) == (Verification.SKIPPED, Origin.UNPROVEN)


async def test_kv_that_was_evicted_before_it_was_looked_at_is_not_compared(looked: Looked) -> None:
    canary = await looked.recorded()
    looked.engine.evicts_looks = True
    evidence = (await looked.verify.compare(looked.prefix, canary)).evidence
    assert (evidence.verification, "evicted" in evidence.reason) == (Verification.SKIPPED, True)


async def test_an_engine_that_refuses_looks_has_no_canaries_and_is_not_compared(
    looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = await looked.recorded()

    async def refuse(*_: object) -> None:
        raise InvalidParameterError("Requested 10 logprobs, the maximum is 5.", field="logprobs")

    monkeypatch.setattr(FakeEngine, "look", refuse)
    assert (await looked.verify.record(looked.prefix)).canary is None
    evidence = (await looked.verify.compare(looked.prefix, canary)).evidence
    assert (evidence.verification, "refuses" in evidence.reason) == (Verification.SKIPPED, True)


async def test_a_canary_of_another_length_is_not_compared(looked: Looked) -> None:
    canary = await looked.recorded()
    looked.ids = looked.ids[: 3 * CHUNK + 1]
    evidence = (await looked.verify.compare(looked.prefix, canary)).evidence
    assert (evidence.verification, "another length" in evidence.reason) == (Verification.SKIPPED, True)


async def test_without_its_records_a_gateway_knows_the_noise_that_it_has_seen_itself(
    looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*_: object) -> None:
        raise EngineConnectionError("no database")

    monkeypatch.setattr(SqlNoise, "noise", gone)
    monkeypatch.setattr(SqlNoise, "add_noise", gone)
    looked.engine.noise = 0.1
    canary = await looked.recorded()
    evidence = (await looked.verify.compare(looked.prefix, canary)).evidence
    assert (evidence.verification, await looked.noise()) == (Verification.WITHIN_NOISE, SURVEYED)


async def test_a_look_that_nobody_waits_for_any_more_is_waited_for_at_the_end(looked: Looked) -> None:
    canary = await looked.recorded()
    looked.engine.gate = asyncio.Event()
    caller = asyncio.create_task(looked.verify.compare(looked.prefix, canary))
    for _ in range(100):
        await asyncio.sleep(0)
    caller.cancel()
    settled = asyncio.create_task(looked.verify.settle())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not settled.done()
    looked.engine.gate.set()
    await asyncio.wait_for(settled, 10)
    assert looked.engine.looks == 3
