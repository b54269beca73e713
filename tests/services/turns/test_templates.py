"""What is said of a turn that has all messages of the line before it, and other tokens."""

from __future__ import annotations

import pytest

from cwm.adapters.sql.database import Database
from cwm.domain.messages import message_of
from cwm.domain.prefix import TokenIds
from cwm.domain.turn import Message
from cwm.services.turns.recording.placement import Said
from cwm.services.turns.recording.turns import Answered
from tests.services.replicas_of import ANN
from tests.services.turns.talk import AGENT, assistant, user
from tests.services.windows_of import Gateway, gateway

PROMPT, ANSWER = tuple(range(100, 140)), (1, 2, 3, 7, 8, 9)
QUESTION, REPLY = user("Which door?"), assistant("The left one.")
CALL = message_of(
    {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "look", "arguments": "{}"}}]}
)


@pytest.fixture
async def cwm(sqlite: Database) -> Gateway:
    running = gateway(sqlite)
    await running.open_session(ANN, "s1")
    return running


@pytest.mark.parametrize(
    ("prompt", "reply", "cause"),
    [
        ((*PROMPT, *ANSWER, 50), REPLY, ""),
        ((*PROMPT[:38], 7, 8, 9, 50), REPLY, "template"),
        ((*PROMPT, 7, 8, 9, 50), REPLY, "template"),
        ((*PROMPT, *ANSWER[:-1], 50, 51), REPLY, ""),
        ((*PROMPT, 1, 2, 60, 50), CALL, ""),
        ((*PROMPT[:38], 1, 2, 60, 50), CALL, "template"),
    ],
    ids=["the same tokens", "no empty thoughts", "no thoughts", "another end", "another call", "both"],
)
async def test_the_template_is_the_cause_where_the_same_messages_have_other_tokens(
    cwm: Gateway, prompt: TokenIds, reply: Message, cause: str
) -> None:
    session = await cwm.registry.session("acme", "s1")
    assert session is not None
    with cwm.turns.begin(ANN, "s1") as turn:
        await turn.ask(session, Said([QUESTION], AGENT))
        await turn.record(Answered((*PROMPT, *ANSWER), len(PROMPT), reply))
    before = await cwm.registry.current_turn("acme", "s1")
    assert before is not None
    with cwm.turns.begin(ANN, "s1") as turn:
        messages = [QUESTION, reply, user("On.")]
        await turn.ask(session, Said(messages, AGENT, current=before.id, line=await turn.line(before)))
        await turn.record(Answered((*prompt, 4), len(prompt), assistant("Yes.")))
    after = await cwm.registry.turn("acme", turn.id or "")
    assert after is not None
    assert (after.cause, after.diverged_at, after.main) == (cause, None, True)
    assert turn.rewritten is bool(cause)
