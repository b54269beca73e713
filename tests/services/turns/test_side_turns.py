"""Requests of a chat without system text under the chat's id: which of them a freeze takes, and when it asks."""

from __future__ import annotations

import pytest

from cwm.adapters.sql.database import Database
from cwm.domain.errors import InvalidParameterError
from cwm.domain.prefix import TokenIds
from cwm.domain.turn import Message, Profile, Turn
from cwm.services.turns.recording.turns import Answered
from tests.services.replicas_of import ANN
from tests.services.turns.talk import AGENT, TITLE, answered, asked, assistant, took, user
from tests.services.windows_of import Gateway, gateway

# All prompts of a chat template begin alike.
BEGINNING = (1, 2, 3)
CHAT = (*BEGINNING, *range(100, 140))
TASK = (*BEGINNING, *range(700, 800))
QUESTION, REQUEST = user("My secret word is heliotrope."), user("### Task: a title for the chat below")


@pytest.fixture
async def cwm(sqlite: Database) -> Gateway:
    running = gateway(sqlite)
    await running.open_session(ANN, "s1")
    return running


async def says(
    cwm: Gateway, prompt: TokenIds, *messages: Message, text: str = "Noted.", answer: TokenIds = (7, 8, 9)
) -> Turn:
    return await took(cwm, prompt, answer, messages, profile=TITLE, text=text)


def after(prompt: TokenIds, *more: int) -> TokenIds:
    """The prompt of the turn that goes on from the answer to ``prompt``."""
    return (*prompt, 7, 8, 9, *more)


async def window_of(cwm: Gateway) -> TokenIds:
    window = (await cwm.freeze(ANN, "s1", "w1", keep_session=True)).window
    return (await cwm.registry.snapshot("acme", window.snapshot_id)).token_ids


async def test_a_title_without_system_text_leaves_the_chat_the_context_and_the_window(cwm: Gateway) -> None:
    await says(cwm, CHAT, QUESTION)
    title = await says(cwm, TASK, REQUEST, text="Secrets")
    assert not title.main
    assert await window_of(cwm) == after(CHAT)
    on = await says(cwm, after(CHAT, 5), QUESTION, assistant("Noted."), user("Which word?"))
    assert on.main
    tags = await says(cwm, (*TASK[:50], *range(900, 990)), user("### Task: tags"), text="secrets")
    assert not tags.main
    assert await cwm.registry.session_tokens("acme", "s1") == after(CHAT, 5, 7, 8, 9)


async def test_a_title_that_ends_before_the_chat_is_no_part_of_the_line(cwm: Gateway) -> None:
    chat = await asked(cwm, [QUESTION], profile=TITLE)
    title = await says(cwm, TASK, REQUEST, text="Secrets")
    assert await answered(chat, CHAT, (7, 8, 9), "Noted.") is not None
    assert await window_of(cwm) == after(CHAT)
    recorded = await cwm.registry.turn("acme", title.id)
    assert recorded is not None
    assert not recorded.main


async def test_another_first_question_is_a_side_turn_until_somebody_goes_on_from_it(cwm: Gateway) -> None:
    first = await says(cwm, CHAT, QUESTION)
    other = await says(cwm, TASK, user("My secret word is lavender."))
    assert await window_of(cwm) == after(CHAT)
    messages = [user("My secret word is lavender."), assistant("Noted."), user("Which word?")]
    on = await says(cwm, after(TASK, 5), *messages, text="Lavender.")
    assert (on.parent, on.main) == (other.id, False)
    with pytest.raises(InvalidParameterError, match="two conversations") as refusal:
        await cwm.freeze(ANN, "s1", "w2")
    assert refusal.value.context["turns"] == [first.id, on.id]
    window = (await cwm.freeze(ANN, "s1", "w3", turn_id=on.id, keep_session=True)).window
    assert (await cwm.registry.snapshot("acme", window.snapshot_id)).token_ids == after(TASK, 5, 7, 8, 9)
    messages += [assistant("Lavender."), user("Thanks.")]
    assert not (await says(cwm, after(after(TASK, 5), 6), *messages)).main


async def test_a_chat_goes_on_from_an_answer_that_was_stopped_whatever_was_asked_beside_it(
    cwm: Gateway,
) -> None:
    stopped = await asked(cwm, [QUESTION], profile=TITLE)
    end = Answered((*CHAT, 7, 8, 9), len(CHAT), assistant("Noted."), 0, abandoned=True)
    assert await stopped.record(end) is not None
    await says(cwm, TASK, REQUEST, text="Secrets")
    on = await says(cwm, after(CHAT, 5), QUESTION, assistant("Noted."), user("Which word?"))
    assert on.main
    assert await window_of(cwm) == after(CHAT, 5, 7, 8, 9)


async def test_a_sub_agent_stays_beside_the_line_though_both_answer_in_the_same_words(cwm: Gateway) -> None:
    sub_agent = Profile("a sub-agent's system text", "its tools")
    line = await took(cwm, CHAT, messages=[QUESTION], text="Done.")
    await took(cwm, TASK, messages=[REQUEST], profile=sub_agent, text="Done.")
    messages = [REQUEST, assistant("Done."), user("Go on.")]
    on = await took(cwm, after(TASK, 5), messages=messages, profile=sub_agent, text="Done.")
    assert (on.main, line.main) == (False, True)


async def test_an_agent_s_title_that_ends_first_leaves_no_doubt(cwm: Gateway) -> None:
    agent = await asked(cwm, [QUESTION], profile=AGENT)
    await says(cwm, (9, *TASK), REQUEST, text="Secrets")
    assert await answered(agent, CHAT, (7, 8, 9), "Noted.") is not None
    assert await window_of(cwm) == after(CHAT)
