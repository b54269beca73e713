"""Search over what was said: the words to find in a message, and where a search goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from cwm.domain.errors import InvalidParameterError
from cwm.domain.names import require_session_id
from cwm.domain.session import SessionMark

MAX_CHARS: Final = 256
_MOST_WORDS: Final = 8
_BEFORE_CHARS: Final = 60
_EXCERPT_CHARS: Final = 240


@dataclass(frozen=True, slots=True)
class Words:
    """Words of which a message must contain each, in any order, in any case, also inside other words."""

    words: tuple[str, ...]

    @classmethod
    def parse(cls, query: str) -> Words:
        """The words of a query, separated by white space. CWM-1003 for none or more than eight."""
        words = tuple(query[: MAX_CHARS + 1].casefold().split())
        if not 1 <= len(words) <= _MOST_WORDS or len(query) > MAX_CHARS:
            raise InvalidParameterError(
                f"query is 1 to {_MOST_WORDS} words, of {MAX_CHARS} characters together.", field="query"
            )
        return cls(words)

    def may_be_in(self, packed: bytes) -> bool:
        """Whether it is worth reading a message whose JSON, in ASCII, this is."""
        lower = packed.lower()
        return all(word.encode() in lower for word in self.words if word.isascii() and word.isalnum())

    def excerpt(self, content: Mapping[str, Any]) -> str | None:
        """Up to 240 characters of the message around the first word; None unless it contains all of them."""
        text = "\n".join(_texts(content))
        folded = text.casefold()
        if not all(word in folded for word in self.words):
            return None
        # Folding may change a text's length, hence about.
        at = max(folded.find(self.words[0]) - _BEFORE_CHARS, 0)
        end = at + _EXCERPT_CHARS
        return f"{'…' if at else ''}{text[at:end]}{'…' if end < len(text) else ''}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A message that has the words: the ``index``-th of those that the turn adds to its parent.

    ``digest`` names its content, ``content`` is it, where it was wanted.
    """

    session_id: str
    turn_id: str
    number: int
    index: int
    role: str
    excerpt: str
    asked_at: datetime
    digest: str = ""
    content: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class SearchMark:
    """A search goes on in this session with what comes before message ``index`` of turn ``number``; 0: behind the session."""

    session: SessionMark
    number: int = 0
    index: int = 0

    def __str__(self) -> str:
        moment = self.session.created_at.astimezone(UTC).isoformat()
        return f"{moment}/{self.session.id}/{self.number}/{self.index}"

    @classmethod
    def parse(cls, cursor: str) -> SearchMark:
        """CWM-1003 for anything but the text of a mark."""
        try:
            moment, session_id, number, index = cursor.split("/")
            created_at = datetime.fromisoformat(moment).astimezone(UTC)
            return cls(SessionMark(created_at, require_session_id(session_id)), int(number), int(index))
        except (ValueError, OverflowError) as error:
            raise InvalidParameterError(
                "cursor is next_cursor of an earlier page.", field="cursor"
            ) from error


def _texts(content: Mapping[str, Any]) -> Iterator[str]:
    """What a person or a model said: text, and the names and arguments of tool calls."""
    body = content.get("content")
    for part in body if isinstance(body, list) else [body]:
        text = part.get("text") if isinstance(part, Mapping) else part
        if isinstance(text, str):
            yield text
    calls = content.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            arguments = function.get("arguments")
            yield str(function.get("name", ""))
            yield arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
