"""What is known of a tool call, and whether an answer made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cwm.domain.conversation import ClientConversation
from cwm.domain.errors import StorageCorruptionError
from cwm.domain.tool_calls import calls_in
from cwm.domain.turn import Message, Turn
from cwm.ports.turns import TurnRecords


@dataclass(frozen=True, slots=True)
class ToolCaller:
    """What is known of a tool call: the client's id of its conversation, the id that the model gave the call, and the call itself."""

    conversation: ClientConversation | None
    call_id: str | None
    name: str
    arguments: Mapping[str, Any]


async def has_made(records: TurnRecords, turn: Turn, caller: ToolCaller) -> bool:
    """Whether the turn's answer made the call. A damaged answer is no evidence, and hides no other."""
    answer: Sequence[Message] = ()
    with suppress(StorageCorruptionError):
        answer = await records.turn_messages(turn, -1)
    calls = calls_in(answer[-1].content) if answer else ()
    if caller.call_id is not None:
        return any(call.id == caller.call_id for call in calls)
    return any(call.is_of(caller.name, caller.arguments) for call in calls)
