"""What a client's summary left out, and which turn went on from it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import pytest

from cwm.domain.errors import TurnNotFoundError
from cwm.domain.facts import Fact, facts_in
from cwm.domain.turn import Message, Profile, TurnSource
from cwm.services.turns.reading import compactions
from cwm.services.turns.reading.branches import Branches
from cwm.services.turns.reading.compactions import Compactions
from cwm.services.turns.reading.history import History
from cwm.services.turns.sending.generate import TurnInput
from tests.services.replicas_of import ANN
from tests.services.turns.talk import AGENT, TITLE, answered, asked, assistant, took, user
from tests.services.windows_of import Gateway

FIRST = tuple(range(100, 140))
SUMMARY = (*FIRST[:10], *range(700, 720))
BEGINNING = [user("The port is 8731. Never use eval."), assistant("Noted.")]


async def test_a_turn_that_goes_on_from_a_summary_says_from_what_and_what_is_gone(cwm: Gateway) -> None:
    of_history = Compactions(History(cwm.registry, cwm.thaw.journal))
    await cwm.open_session(ANN, "s1")
    before = await took(cwm, FIRST, messages=BEGINNING[:1], text="Noted.")
    with pytest.raises(TurnNotFoundError):
        await of_history.left_out(ANN, TurnSource(session_id="s1"))
    title = await took(cwm, SUMMARY, messages=[user("A title?")], profile=TITLE, text="Ports")
    after = await took(cwm, SUMMARY, messages=[user("Summary: eval is never to be used.")], text="Go on.")
    assert (title.compacts, after.compacts) == (None, before.id)
    for source in (TurnSource(session_id="s1"), TurnSource(turn_id=after.id)):
        result = await of_history.left_out(ANN, source)
        assert (result.turn.id, result.before.id) == (after.id, before.id)
        assert [fact.text for fact in result.facts] == ["8731"]
        assert result.fact_count == 2
    with pytest.raises(TurnNotFoundError):
        await of_history.left_out(ANN, TurnSource(turn_id=before.id))


async def test_a_summary_with_the_last_answers_behind_it_is_one(cwm: Gateway) -> None:
    await cwm.open_session(ANN, "s1")
    said = [user("Ports?"), assistant("8731."), user("On."), assistant("Gladly."), user("On, on.")]
    before = await took(cwm, FIRST, messages=said, text="Done.")
    summary = [user("Summary: ports."), assistant("Done."), user("Once more.")]
    after = await took(cwm, SUMMARY, messages=summary, text="Yes.")
    assert after.compacts == before.id
    on = await took(cwm, (*SUMMARY, 7, 8), messages=[*summary, assistant("Yes."), user("On.")], text="So.")
    assert (on.compacts, on.parent) == (None, after.id)


async def test_a_summary_is_one_also_where_the_answer_behind_it_has_the_words_of_an_earlier_one(
    cwm: Gateway,
) -> None:
    await cwm.open_session(ANN, "s1")
    said = [user("The code is 4711."), assistant("Done."), user("What is its colour?")]
    before = await took(cwm, FIRST, messages=said, text="Done.")
    summary = [user("Summary: a door."), assistant("Done."), user("Go on.")]
    after = await took(cwm, SUMMARY, messages=summary, text="Fine.")
    assert after.compacts == before.id


async def test_a_compaction_is_undone_by_the_tag_of_the_turn_before_it(cwm: Gateway) -> None:
    history = History(cwm.registry, cwm.thaw.journal)
    await cwm.open_session(ANN, "s1")
    before = await took(cwm, FIRST, messages=BEGINNING[:1], text="Noted.")
    compacting = await asked(cwm, [user("Summary: eval is never to be used.")])
    await answered(compacting, SUMMARY, (7,), "Go on.")
    assert compacting.compacts
    for _ in range(2):
        await compacting.tag_compacted()
    result = await Compactions(history).left_out(ANN, TurnSource(session_id="s1"))
    assert result.tag == "s1.before-compaction-1"
    branches = Branches(cwm.registry, cwm.thaw.journal, cwm.clock)
    await branches.revert(ANN, f"tag:{result.tag}")
    generated = await cwm.generate(ANN, "s1", TurnInput(text="Which port?", max_tokens=2))
    current = await cwm.registry.current_turn("acme", "s1")
    assert current is not None
    assert (current.parent, current.parent_at, current.main) == (before.id, before.total_tokens, True)
    assert generated.token_count == current.total_tokens > before.total_tokens
    tagged = ("session.compaction", "tagged")
    assert (await cwm.events()).count(tagged) == 1


async def test_the_tag_of_a_compaction_replaces_none_of_its_name_and_goes_with_its_session(
    cwm: Gateway,
) -> None:
    branches = Branches(cwm.registry, cwm.thaw.journal, cwm.clock)
    await cwm.open_session(ANN, "s1")
    first = await took(cwm, FIRST, messages=BEGINNING[:1], text="Noted.")
    await branches.tag(ANN, "s1.before-compaction-2", first.id)
    for text, start in (("A summary.", 700), ("A summary of that.", 800), ("Another.", 900)):
        compacting = await asked(cwm, [user(text)])
        await answered(compacting, (*FIRST[:10], *range(start, start + 20)), (7,), "Go on.")
        await compacting.tag_compacted()
    tags = await cwm.registry.tags("acme")
    assert {tag.name: tag.automatic for tag in tags} == {
        "s1.before-compaction-1": True,
        "s1.before-compaction-2": False,
        "s1.before-compaction-3": True,
    }
    await cwm.end_session(ANN, "s1")
    assert [tag.name for tag in await cwm.registry.tags("acme")] == ["s1.before-compaction-2"]
    assert await cwm.registry.tag(tags[0]) is None


@pytest.mark.parametrize(
    ("messages", "profile"),
    [
        ([*BEGINNING, user("On.")], AGENT),
        ([user("Edited."), BEGINNING[1], user("On.")], AGENT),
        ([BEGINNING[1], user("On.")], AGENT),
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


async def seconds_of(cwm: Gateway, text: str) -> float:
    """The processor time that a comparison takes of a conversation of this text."""
    await cwm.open_session(ANN, "s1")
    await took(cwm, FIRST, messages=[user(text)], text="Noted.")
    await took(cwm, SUMMARY, messages=[user(f"Summary: {text[::-1]}")], text="Go on.")
    began = time.process_time()
    await Compactions(History(cwm.registry, cwm.thaw.journal)).left_out(ANN, TurnSource(session_id="s1"))
    return time.process_time() - began


@pytest.mark.parametrize("piece", ["-", "a-", "A.", "Aa-", '"ab" ', "1_", "never do "])
async def test_what_is_left_out_of_a_megabyte_is_found_in_linear_time(cwm: Gateway, piece: str) -> None:
    # A comparison whose time grows with the square of the length takes hours.
    assert await seconds_of(cwm, piece * (1_000_000 // len(piece))) < 20


async def test_the_loop_is_free_while_a_megabyte_of_dashes_is_compared(
    cwm: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, meanwhile = 0, 0

    async def turn_after_turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    def counted_facts_in(messages: Iterable[Mapping[str, Any]]) -> list[Fact]:
        nonlocal meanwhile
        before = turns
        facts = facts_in(messages)
        meanwhile = turns - before
        return facts

    monkeypatch.setattr(compactions, "facts_in", counted_facts_in)
    other = asyncio.create_task(turn_after_turn())
    await seconds_of(cwm, "-" * 1_000_000)
    other.cancel()
    with suppress(asyncio.CancelledError):
        await other
    assert meanwhile > 5
