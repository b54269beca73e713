"""A transcript in Anthropic's format says what it says in OpenAI's."""

from __future__ import annotations

import pytest

from cwm.domain.transcripts import anthropic
from cwm.domain.turn import Message
from cwm.services.turns.reading.history import Transcript
from cwm.transport.mcp.contract.render import turns as render
from tests.contracts.nouns import a_turn


def test_the_system_text_is_apart_and_neighbours_of_one_role_are_one_message() -> None:
    system, messages = anthropic(
        [
            {"role": "system", "content": "Be terse."},
            {"role": "user", "content": "One."},
            {"role": "user", "content": [{"type": "text", "text": "Two."}]},
            {"role": "assistant", "content": "Three."},
        ]
    )
    assert system == "Be terse."
    assert messages == [
        {"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Three."}]},
    ]


@pytest.mark.parametrize("message_format", ["openai", "anthropic"])
def test_messages_that_are_not_kept_are_left_out_with_a_word_on_how_to_get_the_text(
    message_format: str,
) -> None:
    messages = (Message("a", {"role": "user", "content": "One."}), Message("b"))
    shown = render.turn_shown(Transcript(a_turn(), messages), message_format)
    assert [message["role"] for message in shown["messages"]] == ["user"]
    assert shown["warning"].startswith(
        "1 of 2 messages are not kept (keep.messages: none). include_tokens gives"
    )


def test_tool_calls_and_their_results_are_blocks() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
    _, messages = anthropic(
        [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "text of a"},
        ]
    )
    assert messages == [
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a"}}],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "content": [{"type": "text", "text": "text of a"}],
                }
            ],
        },
    ]


def test_arguments_that_are_no_object_are_kept_as_text() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{broken"}}
    _, (message) = anthropic([{"role": "assistant", "content": "", "tool_calls": [call]}])
    assert message[0]["content"][0]["input"] == {"text": "{broken"}
