"""Controls: contexts computed afresh beside restored ones, on an engine in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from cwm.adapters.sql.database import Database
from cwm.domain.canary import Canary, Origin
from cwm.domain.verdict import Verification
from cwm.ports.engine import Completion, Generation, LookAnswer
from cwm.services.kv.prefix import Prefix
from cwm.services.kv.verify import Comparison
from tests.fakes.engine import FakeEngine
from tests.fakes.kv_tier import Copy
from tests.services.windows_of import Gateway, gateway

pytestmark = pytest.mark.slow


@dataclass(slots=True)
class Interrupted(FakeEngine):
    """Whoever waits gets a turn before each answer. ``seen``: by the name of the engine, contexts computed and looks, in their order."""

    seen: list[tuple[str, str]] = field(default_factory=list)

    async def complete(self, generation: Generation) -> Completion:
        self.seen.append((generation.engine, "computes"))
        await self._others()
        return await FakeEngine.complete(self, generation)

    async def look(
        self, generation: Generation, places: Sequence[int], probes: Sequence[int] = ()
    ) -> LookAnswer:
        self.seen.append((generation.engine, "looks"))
        await self._others()
        return await FakeEngine.look(self, generation, places, probes)

    async def _others(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


@dataclass(slots=True)
class Case:
    prefix: Prefix
    canary: Canary
    comparison: Comparison

    async def judged(self, cwm: Gateway, engine: str = "") -> Verification:
        prefix = replace(self.prefix, identity=replace(self.prefix.identity, engine=engine))
        evidence = await cwm.thaw.control("acme", prefix, self.canary, self.comparison)
        return evidence.verification


async def case(cwm: Gateway, number: int, damaged: int | None = None) -> Case:
    """A window of its own text that the engine has restored, and how it compares with its canary."""
    name = f"w{number}"
    window = await cwm.window(name, f"s{number}")
    snapshot = await cwm.registry.snapshot("acme", window.snapshot_id)
    canary = await cwm.registry.canary("acme", window.snapshot_id, window.cache_salt)
    assert canary is not None
    prefix = Prefix(snapshot.token_ids, window.cache_salt, window.identity)
    cwm.engine.restart()
    if damaged is not None:
        cwm.kv_tier.damage(prefix.key, damaged, Copy.FORGED)
    await cwm.engine.complete(prefix.request())
    return Case(prefix, canary, await cwm.thaw.verify.compare(prefix, canary))


async def test_wrong_kv_is_a_mismatch_whether_its_canary_is_proven_or_not(
    cwm: Gateway,
) -> None:
    wrong = await case(cwm, 1, damaged=1)
    assert wrong.comparison.evidence.verification is Verification.UNDECIDED
    assert await wrong.judged(cwm) is Verification.MISMATCH
    unproven = replace(wrong, canary=replace(wrong.canary, origin=Origin.UNPROVEN))
    assert await unproven.judged(cwm) is Verification.MISMATCH


async def test_a_control_neither_loads_nor_stores_and_computes_under_a_salt_that_nothing_else_has(
    cwm: Gateway,
) -> None:
    wrong = await case(cwm, 1, damaged=1)
    before = dict(cwm.kv_tier.copies)
    await wrong.judged(cwm)
    clean = cwm.directory.clean_room("acme", wrong.prefix.identity)
    asked = [each for each in cwm.engine.requests if each.cache_salt == clean]
    assert [(each.token_ids, each.load_tokens, each.store_tokens) for each in asked] == [
        (wrong.prefix.token_ids, 0, 0)
    ]
    assert dict(cwm.kv_tier.copies) == before
    assert clean not in await cwm.registry.salts_of_every_tenant()
    assert clean != cwm.directory.clean_room("rivals", wrong.prefix.identity), "tenants share no KV"


@pytest.mark.parametrize(("factor", "verdict"), [(2.0, Verification.UNDECIDED), (2.5, Verification.MISMATCH)])
async def test_a_context_and_its_control_have_to_fit_into_the_engines_cache_with_some_room_for_others(
    cwm: Gateway, factor: float, verdict: Verification
) -> None:
    wrong = await case(cwm, 1, damaged=1)
    cwm.engine.room = round(factor * len(wrong.prefix.token_ids)) + 1
    before = len(cwm.engine.requests)
    assert await wrong.judged(cwm) is verdict
    assert (len(cwm.engine.requests) == before) is (verdict is Verification.UNDECIDED), (
        "nothing is computed in vain"
    )


async def test_an_engine_that_does_not_say_how_much_room_it_has_is_asked_all_the_same(cwm: Gateway) -> None:
    wrong = await case(cwm, 1, damaged=1)
    cwm.engine.room = None
    assert await wrong.judged(cwm) is Verification.MISMATCH


async def test_what_was_evicted_during_a_control_is_undecided(cwm: Gateway) -> None:
    wrong = await case(cwm, 1, damaged=1)
    cwm.engine.evicts_looks = True
    assert await wrong.judged(cwm) is Verification.UNDECIDED


async def test_an_engine_has_one_control_at_a_time_and_another_engine_does_not_wait_for_it(
    sqlite: Database,
) -> None:
    engine = Interrupted()
    cwm = gateway(sqlite, engine)
    wrong = await case(cwm, 1, damaged=1)
    engine.seen.clear()
    names = ["one", "one", "one", "two"]
    verdicts = await asyncio.gather(*(wrong.judged(cwm, name) for name in names))
    assert verdicts == [Verification.MISMATCH] * 4
    of_one = [did for name, did in engine.seen if name == "one"]
    assert of_one == ["computes", *["looks"] * 4] * 3
    assert engine.seen[:2] == [("one", "computes"), ("two", "computes")]
    await cwm.settle()


async def test_a_control_that_nobody_waits_for_any_more_is_waited_for_at_the_end(cwm: Gateway) -> None:
    wrong = await case(cwm, 1, damaged=1)
    cwm.engine.gate = asyncio.Event()
    cwm.engine.asked.clear()
    caller = asyncio.create_task(wrong.judged(cwm))
    await asyncio.wait_for(cwm.engine.asked.wait(), 10)
    caller.cancel()
    settled = asyncio.create_task(cwm.thaw.control.settle())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not settled.done()
    cwm.engine.gate.set()
    await asyncio.wait_for(settled, 10)
