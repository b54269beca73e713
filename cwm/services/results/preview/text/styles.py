"""Recognizes the kind of a text, which decides what part of it is shown."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

from cwm.domain.tool_policy import PreviewKind

_SAMPLE: Final = 16_384
_LOG_LINES: Final = 8
_STAMP: Final = re.compile(
    r"\W{0,2}(?:\d{4}[-/.]\d\d[-/.]\d\d[T ]|\d\d:\d\d:\d\d|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d|\d{10}\b"
    r"|\d\d/[A-Z][a-z]{2}/\d{4}|[IWEF]\d{4} )"
)
_LEVEL: Final = re.compile(
    r"\b(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|ERR|FATAL|CRITICAL|PANIC)\b|level=\w"
)
_CODE_LINE: Final = re.compile(r"(?:\t| {2,})\S|.*[{}();,:\[\]>|=\\]\s*$")
_SENTENCE_END: Final = re.compile(r"[.!?…؟۔।]['\"”’)\]]*(?=\s|$)|[。！？]")


class Style(Enum):
    EXTRACT = auto()
    """Whole sentences."""
    HEAD = auto()
    TAIL = auto()
    ENDS = auto()
    """The beginning and, at more length, the end."""


def style_of(text: str, kind: PreviewKind) -> Style:
    """The style by the policy, else by the text: prose as sentences, logs by both ends, tables and code from the start."""
    if kind is PreviewKind.EXTRACT or "\n" not in text.strip():
        return Style.EXTRACT
    if kind is PreviewKind.HEAD:
        return Style.HEAD
    if kind is PreviewKind.TAIL:
        return Style.TAIL
    sample = text[:_SAMPLE]
    lines = [line for line in sample.splitlines() if line.strip()]
    if len(lines) >= _LOG_LINES and 2 * sum(map(_of_a_log, lines)) >= len(lines):
        return Style.ENDS
    return Style.EXTRACT if _prose(sample, lines) else Style.HEAD


def _of_a_log(line: str) -> bool:
    start = line[:64]
    return _STAMP.match(start) is not None or _LEVEL.search(start) is not None


def _prose(sample: str, lines: list[str]) -> bool:
    """Whether sentences end often, and few lines look like code or tables."""
    ends = len(_SENTENCE_END.findall(sample))
    code = sum(1 for line in lines if _CODE_LINE.match(line[:400]))
    return ends * 400 >= len(sample) and 3 * code < len(lines)
