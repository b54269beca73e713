"""Turns as a client takes them: each has a whole prompt, and says who asks."""

from __future__ import annotations

from collections.abc import Sequence

from cwm.domain.messages import message_of
from cwm.domain.prefix import TokenIds
from cwm.domain.session import Session
from cwm.domain.turn import Message, Profile, Turn
from cwm.services.turns.recording.placement import Said
from cwm.services.turns.recording.turns import Answered, RunningTurn
from tests.services.replicas_of import ANN
from tests.services.windows_of import Gateway

AGENT = Profile("the agent's system text", "its tools")
TITLE = Profile()


def user(text: str) -> Message:
    return message_of({"role": "user", "content": text})


def assistant(text: str) -> Message:
    return message_of({"role": "assistant", "content": text})


async def asked(
    cwm: Gateway, messages: Sequence[Message] = (), *, profile: Profile = AGENT, session_id: str = "s1"
) -> RunningTurn:
    """A turn in flight."""
    session = await cwm.registry.session("acme", session_id)
    assert session is not None
    with cwm.turns.begin(ANN, session_id) as turn:
        await turn.ask(session, Said(messages, profile))
    return turn


async def answered(turn: RunningTurn, prompt: TokenIds, answer: TokenIds, text: str = "") -> Session | None:
    message = assistant(text) if text else None
    return await turn.record(Answered((*prompt, *answer), len(prompt), message, 0))


async def took(
    cwm: Gateway,
    prompt: TokenIds,
    answer: TokenIds = (7, 8, 9),
    messages: Sequence[Message] = (),
    *,
    profile: Profile = AGENT,
    text: str = "",
) -> Turn:
    """A whole turn."""
    turn = await asked(cwm, messages, profile=profile)
    turn_id = turn.id or ""
    assert await answered(turn, prompt, answer, text) is not None
    recorded = await cwm.registry.turn("acme", turn_id)
    assert recorded is not None
    return recorded
