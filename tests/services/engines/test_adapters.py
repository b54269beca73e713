"""LoRA adapters: KV of one adapter is that of no other and not the base's, and is the same on every engine that has it."""

from __future__ import annotations

from tests.services.fleet_of import Fleet
from tests.services.replicas_of import ANN
from tests.services.windows_of import TEXT

POET, CLERK = {"poet": "/adapters/poet"}, {"clerk": "/adapters/clerk"}


async def test_an_adapter_s_deployment_is_its_base_s_and_the_adapter(fleet: Fleet) -> None:
    fleet.one.adapters = fleet.two.adapters = {**POET, **CLERK}
    directory = fleet.cwm.directory
    known = {
        (engine, model): await directory.identity(model, engine)
        for engine in ("one", "two")
        for model in ("tiny", "poet", "clerk")
    }
    salts = {key: directory.salt("acme", "s", identity) for key, identity in known.items()}
    assert {identity.root for identity in known.values()} == {"/models/tiny"}, "what LMCache calls it"
    assert len(set(salts.values())) == 3
    for model in ("tiny", "poet", "clerk"):
        assert known["one", model] == known["two", model]
        assert salts["one", model] == salts["two", model]


async def test_another_adapter_under_the_same_name_is_another_deployment(fleet: Fleet) -> None:
    fleet.one.adapters, fleet.two.adapters = POET, {"poet": "/adapters/other-poet"}
    deployments = await fleet.cwm.directory.deployments("poet", "acme")
    assert deployments["one"] != deployments["two"]
    salts = {fleet.cwm.directory.salt("acme", "s", each) for each in deployments.values()}
    assert len(salts) == 2


async def test_an_adapter_that_takes_the_place_of_another_while_the_engine_runs_has_kv_of_its_own(
    fleet: Fleet,
) -> None:
    fleet.one.adapters = fleet.two.adapters = POET
    session = await fleet.cwm.open_session(ANN, "s1", "poet")
    await fleet.cwm.registry.settle_session(session, "one", None)
    await fleet.cwm.says("s1", TEXT)
    fleet.one.adapters = fleet.two.adapters = {"poet": "/adapters/other-poet"}
    session = await fleet.cwm.open_session(ANN, "s2", "poet")
    await fleet.cwm.registry.settle_session(session, "one", None)
    assert (await fleet.cwm.says("s2", TEXT)).cached_tokens == 0
    assert (await fleet.cwm.directory.identity("poet", "one")).adapter == "/adapters/other-poet"


async def test_a_window_of_an_adapter_thaws_on_another_engine_that_has_it(fleet: Fleet) -> None:
    fleet.one.adapters = fleet.two.adapters = POET
    await fleet.cwm.open_session(ANN, "s1", "poet")
    await fleet.cwm.says("s1", TEXT)
    frozen = (await fleet.cwm.freeze(ANN, "s1", "w1")).window
    assert frozen.identity.adapter == "/adapters/poet"
    first = await fleet.engine_of("s1")
    assert first is not None
    await fleet.lose(first)
    thawed = await fleet.cwm.thaw(ANN, "w1")
    assert {thawed.session.engine, first} == {"one", "two"}
    assert not thawed.partial
    assert thawed.receipt.tokens_restored >= fleet.cwm.kv_tier.chunk_size


async def test_a_conversation_with_the_base_leaves_nothing_for_its_adapter(fleet: Fleet) -> None:
    fleet.one.adapters = fleet.two.adapters = POET
    for session_id, model in (("s1", "tiny"), ("s2", "tiny"), ("s3", "poet"), ("s4", "poet")):
        session = await fleet.cwm.open_session(ANN, session_id, model)
        await fleet.cwm.registry.settle_session(session, "one", None)
    cached = [(await fleet.cwm.says(each, TEXT)).cached_tokens for each in ("s1", "s2", "s3", "s4")]
    assert [count > 0 for count in cached] == [False, True, False, True]
