"""Sessions that are one conversation are merged by hand; the tree is as if all had been asked in one."""

from __future__ import annotations

from random import Random

import pytest

from cwm.domain.errors import InvalidParameterError, SessionNotActiveError, SessionNotFoundError
from cwm.domain.prefix import TokenIds, common_length
from cwm.domain.turn import Turn, TurnQuery, TurnSource
from cwm.services.turns.reading.branches import Branches
from cwm.services.turns.reading.history import History
from cwm.services.turns.sending.generate import TurnInput
from tests.services.replicas_of import ANN, BOB
from tests.services.turns.talk import answered, asked, assistant, user
from tests.services.windows_of import Gateway

pytestmark = pytest.mark.slow


@pytest.fixture
def branches(cwm: Gateway) -> Branches:
    return Branches(cwm.registry, cwm.thaw.journal, cwm.clock)


async def said(cwm: Gateway, session_id: str, prompt: TokenIds, *texts: str) -> str:
    """The id of a turn whose messages these are in turns, the last its answer."""
    roles = [user, assistant] * len(texts)
    messages = [role(text) for role, text in zip(roles, texts, strict=False)]
    turn = await asked(cwm, messages[:-1], session_id=session_id)
    assert await answered(turn, prompt, (7, 8), texts[-1]) is not None
    return turn.id or ""


async def test_a_conversation_that_was_parted_goes_on_as_one(cwm: Gateway, branches: Branches) -> None:
    for session_id in ("s1", "s2"):
        await cwm.open_session(ANN, session_id)
    first = await said(cwm, "s1", (1, 2, 3), "One?", "One.")
    second = await said(cwm, "s2", (1, 2, 3, 7, 8, 4), "One?", "One.", "Two?", "Two.")
    await branches.tag(ANN, "there", second)
    session, count = await branches.merge(ANN, "s2", "s1")
    assert (session.id, session.token_count, count) == ("s1", 8, 2)
    assert ("session_merge", "success") in await cwm.events()
    history = History(cwm.registry, cwm.thaw.journal)
    shown = await history.show(ANN, TurnSource(turn_id="tag:there"))
    assert (shown.turn.parent, shown.turn.session_id, shown.turn.number) == (first, "s1", 2)
    assert [message.content["content"] for message in shown.messages] == ["One?", "One.", "Two?", "Two."]
    await cwm.generate(ANN, "s1", TurnInput(text="Three?", max_tokens=1))
    current = await cwm.registry.current_turn("acme", "s1")
    assert current is not None
    assert (current.parent, current.number) == (second, 3)
    frozen = await cwm.freeze(ANN, "s1", "w1")
    assert frozen.window.session_id == "s1"
    with pytest.raises(SessionNotFoundError):
        await history.log(ANN, TurnSource(session_id="s2"))
    await cwm.open_session(ANN, "s2")


async def test_a_window_of_a_session_that_was_merged_thaws_as_before(
    cwm: Gateway, branches: Branches
) -> None:
    for session_id in ("s1", "s2"):
        await cwm.open_session(ANN, session_id)
        await cwm.generate(ANN, session_id, TurnInput(text=f"It is about {session_id}, and so on."))
    context = await cwm.registry.session_tokens("acme", "s2")
    await cwm.freeze(ANN, "s2", "w1", keep_session=True)
    await branches.merge(ANN, "s2", "s1")
    await cwm.thaw(ANN, "w1", "again")
    assert await cwm.registry.session_tokens("acme", "again") == context
    shown = await History(cwm.registry, cwm.thaw.journal).show(ANN, TurnSource(window_name="w1"))
    assert shown.messages[0].content["content"] == "It is about s2, and so on."
    await cwm.freeze(ANN, "again", "w2")


async def test_sessions_that_are_unlike_stay_apart(cwm: Gateway, branches: Branches) -> None:
    await cwm.open_session(ANN, "s1")
    await cwm.open_session(BOB, "bobs")
    await cwm.open_session(ANN, "private", visibility="private")
    await cwm.open_session(ANN, "with-template")
    template = {"tools": [{"type": "function", "function": {"name": "look"}}]}
    talk = TurnInput(messages=[{"role": "user", "content": "Hey."}], template_options=template)
    await cwm.generate(ANN, "with-template", talk)
    for other in ("s1", "bobs", "private", "with-template"):
        with pytest.raises(InvalidParameterError):
            await branches.merge(ANN, other, "s1")
    with pytest.raises(SessionNotFoundError):
        await branches.merge(BOB, "private", "bobs")
    with pytest.raises(SessionNotFoundError):
        await branches.merge(ANN, "s1", "nobody")
    await cwm.open_session(ANN, "s2")
    for session_id in ("s1", "s2"):
        await cwm.generate(ANN, session_id, TurnInput(text="Hey."))
    await cwm.freeze(ANN, "s2", "w1")
    with pytest.raises(SessionNotActiveError):
        await branches.merge(ANN, "s1", "s2")
    assert (await branches.merge(ANN, "s2", "s1"))[1] == 2
    assert (await cwm.registry.session("acme", "s2")) is None


def longest(prompt: TokenIds, contexts: list[TokenIds]) -> int:
    return max((common_length(context, prompt) for context in contexts), default=0)


@pytest.mark.parametrize("seed", range(10))
async def test_each_tree_hangs_where_it_shares_the_most_with_what_was_asked_before(
    cwm: Gateway, branches: Branches, seed: int
) -> None:
    random = Random(seed)
    contexts: dict[str, TokenIds] = {}
    for session_id in ("s1", "s2"):
        await cwm.open_session(ANN, session_id)
    for _ in range(25):
        begun = random.choice([(), (), *contexts.values()])
        added = tuple(random.choices((1, 2), k=random.randint(1, 4)))
        prompt = (*begun[: random.randint(0, len(begun))], *added)
        turn_id = await said(cwm, random.choice(("s1", "s2")), prompt, "Hey?", "Hey.")
        contexts[turn_id] = (*prompt, 7, 8)
    before: dict[str, Turn] = {}
    for session_id in ("s1", "s2"):
        before |= {turn.id: turn for turn in await cwm.registry.turns("acme", session_id, TurnQuery())}
    await branches.merge(ANN, "s2", "s1")
    turns = [*reversed(await cwm.registry.turns("acme", "s1", TurnQuery()))]
    assert [turn.id for turn in turns] == [*contexts]
    for at, turn in enumerate(turns):
        assert await cwm.registry.turn_tokens(turn) == contexts[turn.id]
        if (was := before[turn.id]).parent is not None:
            assert (turn.parent, turn.parent_at) == (was.parent, was.parent_at)
            continue
        prompt = contexts[turn.id][: turn.prompt_tokens]
        others = [each for each in turns[:at] if before[each.id].session_id != was.session_id]
        reach = longest(prompt, [contexts[each.id] for each in others])
        twins = [each for each in others if each.prompt_digest == turn.prompt_digest]
        assert turn.parent_at == reach or twins
        if turn.parent is not None:
            parent = next(each for each in others if each.id == turn.parent)
            assert turn.parent_at == longest(prompt, [contexts[parent.id]])
            assert turn.parent_at > parent.parent_at
