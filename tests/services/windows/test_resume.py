"""A session that goes on from a window under its own id."""

from __future__ import annotations

import pytest

from cwm.domain.access import EVERY, AccessScope
from cwm.domain.errors import SessionAlreadyExistsError, WindowNotFoundError
from cwm.domain.principal import Principal
from cwm.domain.session import SessionQuery, SessionState
from cwm.domain.turn import TurnQuery
from cwm.domain.verdict import Verification
from cwm.services.turns.sending.generate import TurnInput
from cwm.services.windows.resume import Resume
from tests.services.replicas_of import ANN, BOB
from tests.services.windows_of import TEXT, Gateway


@pytest.fixture
def resume(cwm: Gateway) -> Resume:
    return Resume(cwm.registry, cwm.thaw, cwm.turns, cwm.thaw.journal)


@pytest.mark.parametrize("keep_session", [True, False])
async def test_a_session_goes_back_to_its_own_window_and_keeps_all_its_turns(
    cwm: Gateway, resume: Resume, keep_session: bool
) -> None:
    context = await cwm.session()
    await cwm.freeze(ANN, "s1", "w1", keep_session=keep_session)
    if keep_session:
        await cwm.says("s1", " That was a mistake.")
    before = len(await cwm.registry.turns("acme", "s1", TurnQuery()))
    cwm.engine.restart()
    resumed = await resume(ANN, "w1", "s1")
    assert (resumed.session.id, resumed.session.state) == ("s1", SessionState.ACTIVE)
    assert resumed.receipt.evidence.verification is Verification.EXACT
    assert resumed.receipt.tokens_restored > 0
    assert await cwm.registry.session_tokens("acme", "s1") == context
    assert len(await cwm.registry.turns("acme", "s1", TurnQuery())) == before
    said = await cwm.says("s1", " Another end.")
    assert said.cached_tokens > 0
    assert ("turn_revert", "success") in await cwm.events()


async def test_a_session_goes_on_from_a_window_of_another_one_with_what_was_said_in_it(
    cwm: Gateway, resume: Resume
) -> None:
    window = await cwm.window("w1", "s1")
    await cwm.session("s2", "Something else.")
    resumed = await resume(ANN, "w1", "s2")
    assert resumed.session.token_count == window.token_count
    assert await cwm.registry.session_tokens("acme", "s2") == await cwm.registry.session_tokens("acme", "s1")
    current = await cwm.registry.current_turn("acme", "s2")
    assert current is not None
    messages = await cwm.registry.turn_messages(current)
    assert messages[0].content == {"role": "prompt", "content": TEXT}
    assert len(await cwm.registry.turns("acme", "s2", TurnQuery())) == 2
    assert await cwm.at_rest()
    sessions = await cwm.registry.sessions("acme", SessionQuery())
    assert {session.id for session in sessions} == {"s1", "s2"}


async def test_an_id_that_nobody_has_is_a_new_session(cwm: Gateway, resume: Resume) -> None:
    await cwm.window("w1", "s1")
    assert (await resume(ANN, "w1", "new")).session.state is SessionState.THAWED
    with pytest.raises(WindowNotFoundError):
        await resume(ANN, "w2", "s1")


@pytest.mark.parametrize(
    "scopes", [EVERY, frozenset({AccessScope.ADMIN}), frozenset({AccessScope.OTHERS_READ})]
)
async def test_a_session_of_somebody_else_is_refused_and_nothing_of_theirs_changes(
    cwm: Gateway, resume: Resume, scopes: frozenset[AccessScope]
) -> None:
    ann = Principal("acme", "ann", scopes)
    await cwm.window("w1", "s1")
    theirs = ("bobs", "frozen")
    for session_id in theirs:
        await cwm.open_session(BOB, session_id, visibility="private")
        await cwm.generate(BOB, session_id, TurnInput(text=TEXT, max_tokens=8))
    await cwm.freeze(BOB, "bobs", "of-bob", keep_session=True)
    await cwm.freeze(BOB, "frozen", "ended")

    async def everything() -> list[object]:
        registry = cwm.registry
        windows = [await registry.window("acme", name) for name in ("of-bob", "ended")]
        sessions = [
            (
                await registry.session("acme", each),
                await registry.current_turn("acme", each),
                await registry.session_tokens("acme", each),
                await registry.turns("acme", each, TurnQuery()),
            )
            for each in theirs
        ]
        return [*windows, *sessions, await registry.sessions("acme", SessionQuery())]

    before = await everything()
    for session_id in theirs:
        with pytest.raises(SessionAlreadyExistsError) as refused:
            await resume(ann, "w1", session_id)
        assert refused.value.code == "CWM-3001"
    assert await everything() == before
    assert await cwm.at_rest()
    assert (await cwm.generate(BOB, "bobs", TurnInput(text=" On.", max_tokens=8))).cached_tokens > 0
