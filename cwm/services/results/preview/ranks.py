"""Ranks the fields of a record by name and value."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

_SHORT: Final = 80
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_TELLING: Final = re.compile(
    r"ids?|uuid|guid|key|names?|title|label|slug|path|file|filename"
    r"|login|username|user|email|status|state|type|kind|code|version|level"
    r"|number|counts?|totals?|size|length|price|amount|score|rank"
    r"|errors?|message|reason|summary|result|severity"
)
_COUNTING: Final = frozenset({"num", "count", "total"})
_LINKS: Final = frozenset({"url", "uri", "href", "link", "html_url", "permalink"})


class Rank(IntEnum):
    """The lower the rank, the longer a field is kept."""

    TELLING = 0
    """Identifies a record or states its result."""
    SHORT = 1
    LONG = 2
    IDLE = 3
    """Empty, or one of the links that APIs add to everything."""


def rank(name: str, value: Any) -> Rank:
    """The rank of a field. For objects and lists their depth decides whether they are kept."""
    if value is None or value in ("", [], {}):
        return Rank.IDLE
    if isinstance(value, (dict, list)):
        return Rank.LONG
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        return Rank.SHORT if name.lower() in _LINKS else Rank.IDLE
    if _tells(name):
        return Rank.TELLING
    return Rank.LONG if isinstance(value, str) and len(value) > _SHORT else Rank.SHORT


@lru_cache(maxsize=4096)
def _tells(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    return bool(words) and (_TELLING.fullmatch(words[-1]) is not None or words[0] in _COUNTING)
