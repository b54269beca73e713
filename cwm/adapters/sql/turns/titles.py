"""Titles: in brief, what was asked in a turn. Lists show them, and read no message."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from cwm.domain.messages import Brief, in_brief
from cwm.domain.turn import Message

LARGEST_UNTITLED: Final = 256 * 1024
"""The largest weight of a message that is read for the title of a turn that has none."""
_ROLE_CHARS: Final = 40


def title_of(messages: Sequence[Message]) -> bytes:
    """Of the messages that a turn adds: the last of them is its answer."""
    brief = in_brief(messages[-2:][0].content) if messages else Brief()
    return json.dumps([brief.role[:_ROLE_CHARS], brief.words]).encode()


def title_in(stored: bytes) -> Brief:
    role, words = json.loads(stored)
    return Brief(role, words)
