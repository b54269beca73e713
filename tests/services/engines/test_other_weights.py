"""An engine that comes back under its name with other weights."""

from __future__ import annotations

from cwm.domain.engine_health import BACK_AFTER
from tests.services.fleet_of import Fleet
from tests.services.replicas_of import ANN, OPERATOR


async def comes_back_with_other_weights(fleet: Fleet, looks: int) -> None:
    """The first engine restarts, and misses ``looks`` meanwhile."""
    directory, one = fleet.cwm.directory, fleet.one
    one.away = True
    for _ in range(looks):
        await directory.look_at("one", fleet.cwm.clock)
    one.restart()
    one.away, one.weights, one.fingerprint = False, "w-2", "fp-2"
    for _ in range(BACK_AFTER):
        await directory.look_at("one", fleet.cwm.clock)


async def test_its_sessions_go_on_there_without_the_kv_of_the_weights_before(fleet: Fleet) -> None:
    await fleet.begins("s1")
    before = fleet.one.requests[-1]
    await comes_back_with_other_weights(fleet, looks=1)
    answer = await fleet.cwm.says("s1", " On.")
    after = fleet.one.requests[-1]
    assert await fleet.engine_of("s1") == "one"
    assert answer.cached_tokens == 0
    assert after.cache_salt != before.cache_salt
    assert (await fleet.cwm.says("s1", " And on.")).cached_tokens > 0, "its own KV is used"


async def test_it_is_said_that_the_engines_of_the_model_are_two_deployments_now(fleet: Fleet) -> None:
    one, two, _ = await fleet.cwm.survey(OPERATOR)
    assert one.deployments == two.deployments
    await comes_back_with_other_weights(fleet, looks=1)
    one, two, _ = await fleet.cwm.survey(OPERATOR)
    assert (one.deployments, two.deployments) == ({"tiny": "fp-2"}, {"tiny": "fp-1"})


async def test_a_thaw_there_computes_and_says_what_changed(fleet: Fleet) -> None:
    await fleet.begins("s1")
    window = (await fleet.cwm.freeze(ANN, "s1", "w1")).window
    await comes_back_with_other_weights(fleet, looks=1)
    await fleet.lose("two")
    thawed = await fleet.cwm.thaw(ANN, "w1", "s2")
    assert (thawed.session.engine, thawed.receipt.tokens_restored) == ("one", 0)
    assert thawed.receipt.tokens_recomputed == window.token_count
    assert [str(change) for change in thawed.receipt.engine_changes] == [
        "fingerprint was fp-1, is fp-2",
        "weights_digest was w-1, is w-2",
    ]
