"""Answers of protocols that tell no token ids: deploy/engine/cwm_engine/turn_ids.py puts the ids in front, and they are taken out here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from pydantic_core import from_json

from cwm.adapters.vllm.turns.answers import too_large
from cwm.adapters.vllm.turns.events import Events, data_of
from cwm.adapters.vllm.turns.prompt_ids import RecentPrompts
from cwm.domain.prefix import TokenIds, are_ids
from cwm.ports.turn_wire import PromptUsage

HEADERS: Final[Mapping[str, str]] = {"cwm-token-ids": "1"}
_COMMENT: Final = b": cwm-token-ids "
_AT_BEGINNING: Final = b'{"prompt_token_ids":'
_IN_BODY: Final = re.compile(
    rb'\{(?:"prompt_token_ids":(?:null|\[[\d,]*\]))?,?(?:"token_ids":(\[[\d,]*\]))?,?(?:"aborted":(true))?,?'
)


class AnswerReader(Protocol):
    """What one protocol says in an answer.

    ``take`` gets each event of a stream, or the object of a body, and returns what the client gets instead; None: the bytes as they are.
    """

    @property
    def begun(self) -> bool:
        """Whether an event brought a piece of the answer, which is a token at least."""

    @property
    def ended(self) -> bool: ...

    @property
    def aborted(self) -> bool:
        """Whether the engine broke the answer off, as far as the protocol says so."""

    @property
    def failed(self) -> bool:
        """Whether the engine says in a stream that it failed."""

    def take(self, event: dict[str, Any]) -> dict[str, Any] | None: ...

    def message(self) -> Mapping[str, Any] | None: ...

    def usage(self) -> PromptUsage | None: ...

    def total_tokens(self) -> int | None: ...

    @property
    def odd(self) -> bool: ...


class EngineIds:
    """A :class:`cwm.ports.turn_wire.TurnAnswer` whose words ``reader`` understands."""

    def __init__(
        self,
        reader: AnswerReader,
        *,
        streamed: bool,
        max_bytes: int,
        named: Callable[[bytes], bytes],
        prompts: RecentPrompts | None = None,
        session: str = "",
    ) -> None:
        self.aborted = False
        self.begun = False
        self.failed = b""
        self._reader = reader
        self._streamed = streamed
        self._max_bytes = max_bytes
        self._rename = named
        self._prompts = prompts or RecentPrompts()
        self._session = session
        self._prompt: list[int] | None = None
        self._new: list[int] = []
        self._events = Events(max_bytes)
        self._body: list[bytes] = []
        self._size = 0

    @property
    def ended(self) -> bool:
        return self._streamed and self._reader.ended

    def feed(self, chunk: bytes) -> bytes:
        if self._streamed:
            return b"".join([self._event(event) for event in self._events.take(chunk)])
        self._body.append(chunk)
        self._size += len(chunk)
        if self._size > self._max_bytes:
            raise too_large(self._max_bytes)
        return b""

    def finish(self) -> bytes:
        if self._streamed:
            rest = self._events.rest()
            return self._event(rest) if rest else b""
        return self._whole(b"".join(self._body))

    def token_ids(self) -> TokenIds | None:
        if self._prompt is None or not self._new or not are_ids([*self._prompt, *self._new]):
            return None
        return (*self._prompt, *self._new)

    def prompt_tokens(self) -> int:
        return len(self._prompt or ())

    def message(self) -> Mapping[str, Any] | None:
        return self._reader.message()

    def usage(self) -> PromptUsage | None:
        return self._reader.usage()

    def tokens(self) -> int:
        total = self._reader.total_tokens()
        return len(self._prompt or ()) + len(self._new) if total is None else total

    @property
    def odd(self) -> bool:
        return self._reader.odd

    def _event(self, event: bytes) -> bytes:
        if self.aborted:
            return b""
        if event.startswith(_COMMENT):
            prompt, rest = self._prompts.take(self._session, event)
            self._take(prompt, rest[len(_COMMENT) :])
            return b""
        data = data_of(event)
        if not data.startswith(b"{"):
            return event
        content = self._renamed(event, data)
        # Where no ids are known, the end of an answer without words is its first token.
        if self._reader.aborted:
            self.aborted = True
            return b""
        if self._reader.failed:
            self.failed += content
            return b""
        has_ended = self._prompt is None and self._reader.ended
        self.begun = self.begun or self._reader.begun or has_ended
        return content

    def _whole(self, content: bytes) -> bytes:
        # Behind the beginning a model may write the same.
        has_ids = content.startswith(_AT_BEGINNING)
        prompt, rest = self._prompts.take(self._session, content) if has_ids else (None, content)
        beginning = _IN_BODY.match(rest) if prompt is not None else None
        if beginning is not None:
            aborted = b"true" if beginning[2] else b"false"
            self._take(prompt, b'{"token_ids":%b,"aborted":%b}' % (beginning[1] or b"null", aborted))
            rest = b"{" + rest[beginning.end() :]
        content = self._renamed(rest, rest)
        self.aborted = self.aborted or self._reader.aborted
        return content

    def _renamed(self, content: bytes, data: bytes) -> bytes:
        """The bytes of an event or a body as the client gets them."""
        try:
            value = json.loads(data)
        except ValueError:
            return content
        replacement = self._reader.take(value) if isinstance(value, dict) else None
        if replacement is not None:
            text = json.dumps(replacement, separators=(",", ":"), ensure_ascii=False).encode()
            content = content.replace(data, text)
            if (name := value.get("type")) != (renamed := replacement.get("type")):
                content = content.replace(f"event: {name}\n".encode(), f"event: {renamed}\n".encode(), 1)
        return self._rename(content)

    def _take(self, prompt: list[int] | None, content: bytes) -> None:
        """``content``: an object with the new ids, and with the engine's word that it broke off."""
        fields = _object(content)
        self.aborted = self.aborted or fields.get("aborted") is True
        new = fields.get("token_ids")
        if prompt is not None:
            self._prompt, self._new = prompt, []
        if new:
            self._new.extend(new if isinstance(new, list) else [new])
            self.begun = True


def _object(content: bytes) -> dict[str, Any]:
    """The object in ``content``; empty for anything else."""
    try:
        value = from_json(content)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
