"""Classifies refused names that look like injection attempts.

Only values that were already refused are examined: a name that matches its pattern is harmless, and free text may
contain any of these patterns legitimately.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final
from urllib.parse import unquote

_LONGEST: Final = 4096


class Injection(StrEnum):
    PATH_TRAVERSAL = "path_traversal"
    SHELL = "shell"
    SQL = "sql"


_PATTERNS: Final = (
    (Injection.PATH_TRAVERSAL, re.compile(r"\.\.[/\\]|[/\\]\.\.|^\.\.$|^~?/|^[a-z]:\\|\x00", re.IGNORECASE)),
    (
        Injection.SQL,
        re.compile(
            r"--|/\*|['\"]\s*(or|and)\b|\b(or|and)\s+\d+\s*=|\bunion\b.{0,20}\bselect\b|"
            # What follows the first of these words follows any of them: the text is read once.
            r"\A(?>.*?\b(select|insert|update|delete|drop|alter|truncate|exec)\b\s).*?"
            r"\b(from|into|set|table|database|where)\b",
            re.IGNORECASE | re.DOTALL,
        ),
    ),
    (Injection.SHELL, re.compile(r"[;|`]|\$[({]|&&|[<>]\(")),
)


def injection_of(value: str) -> Injection | None:
    """The first class that ``value`` resembles, as sent or percent-decoded; None for an ordinary mistake."""
    bounded = value[:_LONGEST]
    for spelling in (bounded, unquote(bounded)):
        for kind, pattern in _PATTERNS:
            if pattern.search(spelling):
                return kind
    return None
