"""Server-sent events, as vLLM's bytes have them."""

from __future__ import annotations

import re
from typing import Final

from cwm.domain.errors import EngineResponseError

MAX_BYTES: Final = 32 * 1024 * 1024
_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class Events:
    """Cuts a stream into its events, each when its last byte has arrived. An event has at most ``max_bytes``, and one chunk more."""

    __slots__ = ("_last", "_max_bytes", "_pending", "_size")

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._pending: list[bytes] = []
        self._size = 0
        self._last = b""

    def take(self, chunk: bytes) -> list[bytes]:
        """The events that end with these bytes. CWM-5002 if an event goes on and on."""
        if self._size > self._max_bytes:
            raise EngineResponseError(
                f"The engine sent an event of more than {self._max_bytes} bytes, and the answer was given up. "
                "The operator's limit is CWM_MAX_ANSWER_BYTES.",
                limit_bytes=self._max_bytes,
            )
        self._pending.append(chunk)
        self._size += len(chunk)
        # An end may begin in the bytes before. Those of a long event are joined once, not with every chunk.
        near = self._last + chunk
        self._last = near[-3:]
        if _END.search(near) is None:
            return []
        text = b"".join(self._pending)
        events: list[bytes] = []
        start = 0
        for end in _END.finditer(text, max(0, len(text) - len(chunk) - 3)):
            events.append(text[start : end.end()])
            start = end.end()
        self._pending = [text[start:]]
        self._size = len(text) - start
        self._last = text[start:][-3:]
        return events

    def rest(self) -> bytes:
        """What follows the last end of an event."""
        rest = b"".join(self._pending)
        self._pending.clear()
        self._size = 0
        self._last = b""
        return rest


def data_of(event: bytes) -> bytes:
    """The joined ``data:`` lines of an event; empty if it has none, as with a comment."""
    if event.startswith(b"data:") and event.count(b"\n") <= 2 and b"\r" not in event:
        return event[5:].strip()
    lines = (line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))
    return b"\n".join(lines)
