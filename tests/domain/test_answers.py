"""What a request and a recorded answer have in common."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cwm.domain.answers import calls_digest, core_chains, is_random_id, request_keys
from cwm.domain.messages import message_of
from cwm.domain.surroundings import without_surroundings
from cwm.domain.turn import Message


@pytest.mark.parametrize(
    ("call_id", "is_drawn"),
    [
        ("chatcmpl-tool-0123456789abcdef0123456789abcdef", True),
        ("chatcmpl-tool-b43c9a0011d2e3f4", True),
        ("call_QWErtyuiOPasdfghjKlzxcv1", True),
        ("call_550e8400-e29b-41d4-a716-446655440000", True),
        ("toolu_01A09q90qw90lq917835lq9", True),
        ("aB3dE6g8k", True),
        ("functions.look:0", False),
        ("functions_getwindowinformation0", False),
        ("call_1", False),
        ("call_0000000000000001", False),
        ("window123", False),
        ("", False),
        ("a1b2C3" * 100, False),
    ],
)
def test_only_an_id_that_an_engine_draws_is_random(call_id: str, is_drawn: bool) -> None:
    assert is_random_id(call_id) is is_drawn


def said(*texts: str) -> list[Message]:
    """System text, question, answer, question and so on."""
    roles = ["system", *["user", "assistant"] * len(texts)]
    return [message_of({"role": role, "content": text}) for role, text in zip(roles, texts, strict=False)]


def called(call_id: str, name: str = "look", **arguments: Any) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": call_id, "type": "function", "function": function}
    return message_of({"role": "assistant", "content": None, "tool_calls": [call]})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("It is Monday.", "Mend it."), ("You are another.", "Mend it.")),
        (("", "<env>\na.py\n</env>Mend it."), ("", "<env>\na.py b.py\n</env>Mend it.")),
        (("", '<context name="git">clean</context>\nMend it.'), ("", "Mend it.")),
        (("", "Today is 2026-11-27. Mend it."), ("", "Today is 2026-11-28. Mend it.")),
    ],
)
def test_surroundings_and_system_text_are_no_part_of_the_core(
    one: tuple[str, ...], other: tuple[str, ...]
) -> None:
    assert core_chains(said(*one, "Done.", "On."))[-1] == core_chains(said(*other, "Done.", "On."))[-1]


@pytest.mark.parametrize(
    "other",
    [
        ("", "Mend that.", "Done.", "On."),
        ("", "Mend it.", "It is done.", "On."),
        ("", "Mend it.", "Done.", "<env>On.</env>"),
        ("", "<div>Mend it.</div>", "Done.", "On."),
        ("", "<env>Mend it.", "Done.", "On."),
    ],
)
def test_everything_else_is(other: tuple[str, ...]) -> None:
    assert core_chains(said("", "Mend it.", "Done.", "On."))[-1] != core_chains(said(*other))[-1]


def test_a_message_of_nothing_but_surroundings_is_left_out() -> None:
    preface = "This is the Qwen Code. We are setting up the context for our chat.\nFiles: {}"
    one, other = (said("", preface.format(files), "Got it.", "hi") for files in ("a.py", "a.py b.py"))
    assert core_chains(one)[-1] == core_chains(other)[-1]


def test_an_answers_calls_are_its_ids_names_and_arguments_under_its_hints() -> None:
    drawn = "chatcmpl-tool-0123456789abcdef"
    digest = calls_digest(called(drawn, at="here"))
    assert digest == calls_digest(called(drawn, at="here")) is not None
    others = [
        calls_digest(called("chatcmpl-tool-1123456789abcdef", at="here")),
        calls_digest(called(drawn, "another", at="here")),
        calls_digest(called(drawn, at="there")),
        calls_digest(called(drawn, at="here"), "a hint"),
    ]
    assert len({digest, *others}) == 5
    assert calls_digest(called("call_1", at="here")) is None
    assert calls_digest(said("", "hi", "Done.")[-1]) is None


def test_the_last_answers_have_keys_the_last_one_first() -> None:
    messages = said("s", *(f"{number}" for number in range(9)))
    keys = request_keys(messages, 3)
    chains = [request_keys(messages[: at + 1], 3).chain for at in (8, 6, 4)]
    assert [each.chain for each in keys.answers] == chains
    assert keys.chain == request_keys(messages, 1).chain


def test_a_text_without_blocks_stays() -> None:
    assert without_surroundings("a < b and c > d </env>") == "a < b and c > d </env>"
