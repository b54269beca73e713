"""What a client's summary left out, and which turn went on from it."""

from __future__ import annotations

import pytest

from cwm.domain.errors import TurnNotFoundError
from cwm.domain.turn import Message, Profile, TurnSource
from cwm.services.turns.compactions import Compactions
from cwm.services.turns.history import History
from tests.services.replicas_of import ANN
from tests.services.turns.talk import AGENT, TITLE, assistant, took, user
from tests.services.windows_of import Gateway

FIRST = tuple(range(100, 140))
SUMMARY = (*FIRST[:10], *range(700, 720))
BEGINNING = [user("The port is 8731. Never use eval."), assistant("Noted.")]


async def test_a_turn_that_goes_on_from_a_summary_says_from_what_and_what_is_gone(cwm: Gateway) -> None:
    compactions = Compactions(History(cwm.registry, cwm.thaw.journal))
    await cwm.open_session(ANN, "s1")
    before = await took(cwm, FIRST, messages=BEGINNING[:1], text="Noted.")
    with pytest.raises(TurnNotFoundError):
        await compactions.left_out(ANN, TurnSource(session_id="s1"))
    title = await took(cwm, SUMMARY, messages=[user("A title?")], profile=TITLE, text="Ports")
    after = await took(cwm, SUMMARY, messages=[user("Summary: eval is never to be used.")], text="Go on.")
    assert (title.compacts, after.compacts) == (None, before.id)
    for source in (TurnSource(session_id="s1"), TurnSource(turn_id=after.id)):
        result = await compactions.left_out(ANN, source)
        assert (result.turn.id, result.before.id) == (after.id, before.id)
        assert [fact.text for fact in result.facts] == ["8731"]
        assert result.fact_count == 2
    with pytest.raises(TurnNotFoundError):
        await compactions.left_out(ANN, TurnSource(turn_id=before.id))


@pytest.mark.parametrize(
    ("messages", "profile"),
    [
        ([*BEGINNING, user("On.")], AGENT),
        ([user("Edited."), BEGINNING[1], user("On.")], AGENT),
        ([user("Another agent.")], Profile("another system text", "its tools")),
    ],
)
async def test_what_carries_an_answer_or_is_of_another_agent_is_no_compaction(
    cwm: Gateway, messages: list[Message], profile: Profile
) -> None:
    await cwm.open_session(ANN, "s1")
    await took(cwm, FIRST, messages=BEGINNING[:1], text="Noted.")
    turn = await took(cwm, SUMMARY, messages=messages, profile=profile, text="Yes.")
    assert turn.compacts is None
