"""The ids of the prompt in an answer, found in its bytes. Only those behind the session's prompt before are parsed."""

from __future__ import annotations

import re
from collections import OrderedDict
from threading import Lock
from typing import Final

from pydantic_core import from_json

_NAME: Final = b'"prompt_token_ids"'
_BEGINS: Final = re.compile(rb"\s*:\s*(?=\[)")
_ARRAY: Final = re.compile(rb"\[[\d\s,]*\]")
_MORE: Final = re.compile(rb"[\d\s,]*\]")
_MOST_TOKENS: Final = 400_000
# Shorter ones are parsed as fast as they are compared.
_LEAST_TOKENS: Final = 1000


class RecentPrompts:
    """The newest prompt of each session, as JSON without its end and as ids: at most so many tokens altogether.

    It is never looked at for another session, whose answer would tell by its time that somebody had the same prompt.
    """

    def __init__(self, most_tokens: int = _MOST_TOKENS) -> None:
        self._most_tokens = most_tokens
        self.tokens = 0
        self._prompts: OrderedDict[str, tuple[bytes, list[int]]] = OrderedDict()
        # Large answers are read in threads.
        self._lock = Lock()

    def take(self, session: str, content: bytes) -> tuple[list[int] | None, bytes]:
        """The ids of the first prompt in ``content``, and the rest, with ``null`` in their place; None where there are none."""
        start = _start(content)
        if start is None:
            return None, content
        text, ids = self._prompts.get(session, (b"", []))
        at = start + len(text)
        longer = text and content.startswith(text, start) and content[at : at + 1] in {b",", b"]"}
        array = _MORE.match(content, at) if longer else _ARRAY.match(content, start)
        if array is None:
            return None, content
        try:
            ids = [*ids, *from_json(b"[" + array[0].lstrip(b","))] if longer else from_json(array[0])
        except ValueError:
            return None, content
        self._keep(session, content[start : array.end() - 1], ids)
        return ids, b"null".join((content[:start], content[array.end() :]))

    def _keep(self, session: str, text: bytes, ids: list[int]) -> None:
        with self._lock:
            self.tokens -= len(self._prompts.pop(session, (b"", []))[1])
            if session and len(ids) >= _LEAST_TOKENS:
                self._prompts[session] = (text, ids)
                self.tokens += len(ids)
            while self.tokens > self._most_tokens:
                self.tokens -= len(self._prompts.popitem(last=False)[1][1])


def _start(content: bytes) -> int | None:
    """Where the array begins. Inside a JSON string the name's quotes are escaped."""
    at = content.find(_NAME)
    while at >= 0:
        begins = _BEGINS.match(content, at + len(_NAME))
        if begins and content[at - 1 : at] != b"\\":
            return begins.end()
        at = content.find(_NAME, at + 1)
    return None
