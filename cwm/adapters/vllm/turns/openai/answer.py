"""A response of the pass-through: reads its token ids and its message, and removes the ids if the client did not ask for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from cwm.adapters.vllm.turns.answers import as_it_is, too_large
from cwm.adapters.vllm.turns.events import MAX_BYTES, Events, data_of
from cwm.adapters.vllm.turns.openai.message import Message
from cwm.adapters.vllm.turns.openai.resumption import Progress
from cwm.adapters.vllm.turns.openai.tokens import TAIL_BYTES, Ids, choices_of, without_ids
from cwm.adapters.vllm.turns.prompt_ids import RecentPrompts
from cwm.domain.prefix import TokenIds
from cwm.ports.turn_wire import PromptUsage

# Up to here a body is parsed whole, which takes a few milliseconds.
_LARGE_BYTES: Final = 256 * 1024
_DONE: Final = b"[DONE]"
_FAILURE: Final = 500
_ABORT: Final = b'"abort"'
_ERROR: Final = b'data: {"error"'


class _Answer:
    """What both forms of an answer know of its token ids and its message."""

    __slots__ = (
        "_hide_ids",
        "_ids",
        "_message",
        "_prompts",
        "_recorded",
        "_rename",
        "_session",
        "aborted",
        "begun",
        "ended",
        "failed",
    )

    def __init__(
        self,
        *,
        hide_ids: bool,
        recorded: bool,
        named: Callable[[bytes], bytes] | None = None,
        prompts: RecentPrompts | None = None,
        session: str = "",
    ) -> None:
        self._rename = named or as_it_is
        self._prompts = prompts or RecentPrompts()
        self._session = session
        self._ids = Ids()
        self._message = Message()
        self._hide_ids = hide_ids
        self._recorded = recorded
        self.aborted = False
        self.begun = False
        self.ended = False
        self.failed = b""

    def _without_prompt(self, content: bytes) -> bytes:
        """Take the ids of the prompt out of a part of the answer."""
        ids, rest = self._prompts.take(self._session, content)
        self._ids.take_prompt(ids)
        return rest

    def token_ids(self) -> TokenIds | None:
        return self._ids.together()

    def prompt_tokens(self) -> int:
        return self._ids.prompt_count()

    def message(self) -> Mapping[str, Any] | None:
        return self._message.joined() if self._recorded and self._ids.begun else None

    def usage(self) -> PromptUsage | None:
        return self._ids.usage

    def tokens(self) -> int:
        return self._ids.count()

    @property
    def odd(self) -> bool:
        return self._ids.odd


class BodyAnswer(_Answer):
    """A response with one JSON body, passed on when it is complete.

    A large one whose ids nobody needs is passed on as it arrives. One that is ``recorded`` may have ``max_bytes``: CWM-1003.
    """

    __slots__ = ("_chunks", "_max_bytes", "_size", "_tail")

    def __init__(
        self,
        *,
        hide_ids: bool,
        recorded: bool = True,
        max_bytes: int = MAX_BYTES,
        named: Callable[[bytes], bytes] | None = None,
        prompts: RecentPrompts | None = None,
        session: str = "",
    ) -> None:
        # Neither begun nor ended before it is complete: an aborted request leaves nothing to record.
        super().__init__(hide_ids=hide_ids, recorded=recorded, named=named, prompts=prompts, session=session)
        self._chunks: list[bytes] = []
        self._max_bytes = max_bytes
        self._size = 0
        self._tail = b""

    def feed(self, chunk: bytes) -> bytes:
        self._size += len(chunk)
        self._chunks.append(chunk)
        if self._recorded:
            if self._size > self._max_bytes:
                raise too_large(self._max_bytes)
            return b""
        if self._size <= _LARGE_BYTES:
            return b""
        content = self._joined()
        self._tail = (self._tail + content[-TAIL_BYTES:])[-TAIL_BYTES:]
        return self._rename(content)

    def finish(self) -> bytes:
        content = self._joined()
        rest = self._without_prompt(content) if self._recorded else content
        bare = without_ids(rest) if self._recorded else content
        if self._size <= _LARGE_BYTES or (self._recorded and len(rest) <= _LARGE_BYTES):
            answer = _object(rest)
            self.aborted = _is_aborted(answer)
            self._ids.take(answer)
            self._message.take(answer)
        elif self._recorded:
            self._ids.take_large(rest)
            if len(bare) <= _LARGE_BYTES:
                self._message.take(_object(bare))
        else:
            self._ids.take_usage(self._tail + content)
        return self._rename(bare if self._hide_ids else content)

    def _joined(self) -> bytes:
        content = b"".join(self._chunks)
        self._chunks.clear()
        return content


class StreamAnswer(_Answer):
    """A response of server-sent events; each event is passed on when its last byte has arrived.

    With ``hide_usage`` the client has not asked for the usage at the end: the last event waits for it and gets what it has of
    vLLM's last event, the fingerprint. An event may have ``max_bytes``: CWM-5002.
    """

    __slots__ = ("_events", "_hide_usage", "_last", "_progress")

    def __init__(
        self,
        *,
        recorded: bool,
        hide_ids: bool,
        hide_usage: bool = False,
        max_bytes: int = MAX_BYTES,
        named: Callable[[bytes], bytes] | None = None,
        prompts: RecentPrompts | None = None,
        session: str = "",
    ) -> None:
        super().__init__(hide_ids=hide_ids, recorded=recorded, named=named, prompts=prompts, session=session)
        self._hide_usage = hide_usage
        self._last = b""
        self._events = Events(max_bytes)
        self._progress = Progress()

    def feed(self, chunk: bytes) -> bytes:
        return self._rename(b"".join([self._event(event) for event in self._events.take(chunk)]))

    def progress(self) -> Progress:
        """What was read, of an engine that is gone: what it sent of another event, or of its end, is of no use."""
        self._events.rest()
        self.aborted, self.failed = False, b""
        self._progress.prompt = self._ids.prompt()
        return self._progress

    def finish(self) -> bytes:
        rest = self._events.rest()
        return self._rename((self._event(rest) if rest else b"") + self._let_go())

    def _event(self, event: bytes) -> bytes:
        if self.aborted or (_ABORT in event and _is_aborted(_object(data_of(event)))):
            # Nothing of it reaches the client, so that another engine goes on where this one really was.
            self.aborted = True
            return b""
        if self.failed or _gives_up(event):
            self.failed += event
            return self._let_go()
        rest = self._without_prompt(event) if self._recorded else event
        data = data_of(rest)
        if not data:
            return event
        if data == _DONE:
            self.begun = self.ended = True
            return self._let_go() + event
        if not self._recorded:
            self.begun = self.begun or _has_token(_object(data))
            if b'"usage"' in data:
                self._ids.take(_object(data))
            return event
        return self._recorded_event(event, rest, _object(data))

    def _recorded_event(self, event: bytes, rest: bytes, answer: dict[str, Any]) -> bytes:
        """``rest`` is the event without the prompt's ids, ``answer`` what it says."""
        self._ids.take(answer)
        self._message.take(answer)
        self._progress.take(answer)
        self.begun = self._ids.begun
        if self._last and _is_only_usage(answer):
            return self._let_go(answer.get("system_fingerprint"))
        if self._hide_ids:
            event = b"" if _is_only_for_ids(answer) else without_ids(rest)
        if self._hide_usage and _is_last(answer):
            self._last = event
            return b""
        return event

    def _let_go(self, fingerprint: Any = None) -> bytes:
        """The event that waited."""
        last, self._last = self._last, b""
        if fingerprint is None:
            return last
        end = last.rindex(b"}")
        fingerprint_json = json.dumps(fingerprint, ensure_ascii=False).encode()
        return b"".join((last[:end], b',"system_fingerprint":', fingerprint_json, last[end:]))


def _gives_up(event: bytes) -> bool:
    """Whether this event of a stream is the engine's own failure, as when its core process died."""
    error = _object(data_of(event)).get("error") if event.startswith(_ERROR) else None
    return isinstance(error, dict) and isinstance(code := error.get("code"), int) and code >= _FAILURE


def _is_aborted(answer: dict[str, Any]) -> bool:
    """Whether an engine that ends broke off an answer."""
    return any(choice.get("finish_reason") == "abort" for choice in choices_of(answer))


def _is_only_for_ids(answer: dict[str, Any]) -> bool:
    """Whether vLLM sends this chat event only because ids were requested.

    A token that a tool or reasoning parser withholds has an empty delta; without ids vLLM sends no event for it.
    """
    choices = choices_of(answer)
    return len(choices) == 1 and (
        choices[0].get("delta") == {}
        and choices[0].get("finish_reason") is None
        and choices[0].get("logprobs") is None
    )


def _is_last(answer: dict[str, Any]) -> bool:
    """Whether only the usage follows, and is not what vLLM sends in every event to everybody."""
    return not answer.get("usage") and any(
        choice.get("finish_reason") is not None for choice in choices_of(answer)
    )


def _has_token(answer: dict[str, Any]) -> bool:
    """Whether an event of a stream has a piece of a choice, or its end; an engine may send the role before it computes."""
    for choice in choices_of(answer):
        delta = choice.get("delta")
        pieces = [value for name, value in delta.items() if name != "role"] if isinstance(delta, dict) else []
        if choice.get("text") or choice.get("finish_reason") is not None or any(pieces):
            return True
    return False


def _is_only_usage(answer: dict[str, Any]) -> bool:
    return answer.get("choices") == [] and bool(answer.get("usage"))


def _object(content: bytes) -> dict[str, Any]:
    """The JSON object in ``content``; empty for anything else, which is passed on without being read."""
    try:
        value = json.loads(content)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
