"""A response of the pass-through: reads its token ids and its message, and removes the ids if the client did not ask for them.

The ids are found in the bytes by their field names. Inside a JSON string every quote is escaped, so text
cannot match the pattern of a name, a colon and an array of numbers. vLLM writes ``null`` when ids were not
requested; with ``null`` in place of the ids, the bytes equal those of an unrecorded response.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from pydantic_core import from_json

from cwm.adapters.vllm.turns.events import Events, data_of
from cwm.adapters.vllm.turns.prompt_ids import RecentPrompts
from cwm.adapters.vllm.turns.resumption import Progress
from cwm.domain.errors import InvalidParameterError
from cwm.domain.prefix import TokenIds
from cwm.ports.turn_wire import PromptUsage

# Begins with letters: searching for a literal is several times as fast as trying a pattern at every byte.
_IDS: Final = re.compile(
    rb'token_ids(?:(?<=[^\\]"token_ids)|(?<=[^\\]"prompt_token_ids))("\s*:\s*)\[[\d\s,]*\]'
)
_GIVEN_IDS: Final = re.compile(rb'token_ids"\s*:\s*(\[[\d\s,]*\]|null)')
_NAME_BEGINS: Final = re.compile(rb'[^\\]"(prompt_)?\Z')
_USAGE: Final = re.compile(rb'(?<=[^\\]")usage"\s*:\s*(\{)')
# Up to here a body is parsed whole, which takes a few milliseconds.
_LARGE_BYTES: Final = 256 * 1024
# vLLM writes the usage behind the choices.
_TAIL_BYTES: Final = 16 * 1024
_NULL: Final = rb"token_ids\1null"
_DONE: Final = b"[DONE]"
_DECODER: Final = json.JSONDecoder()
_MAX_BYTES: Final = 32 * 1024 * 1024
_FAILURE: Final = 500
_ERROR: Final = b'data: {"error"'


def without_ids(content: bytes) -> bytes:
    return _IDS.sub(_NULL, content)


def renaming(served: str, wanted: str) -> Callable[[bytes], bytes]:
    """Puts the model's name that the client used where the engine writes its own.

    Inside a JSON string every quote is escaped, so text cannot match.
    """
    pattern = re.compile(
        rb'([{,]\s*"model"\s*:\s*)' + re.escape(json.dumps(served, ensure_ascii=False).encode())
    )
    name = json.dumps(wanted).encode()
    return lambda content: pattern.sub(lambda match: match[1] + name, content)


def as_it_is(content: bytes) -> bytes:
    return content


class _Ids:
    """Collects the token ids of a turn from the objects of a response; of several choices, those of choice 0."""

    __slots__ = ("_complete", "_new", "_others", "_prompt", "_total", "usage")

    def __init__(self) -> None:
        self._prompt: list[int] | None = None
        self._new: list[int] = []
        self._others = 0
        self._complete = True
        self._total: int | None = None
        self.usage: PromptUsage | None = None

    def take(self, answer: dict[str, Any]) -> None:
        self.take_prompt(answer.get("prompt_token_ids"))
        for choice in _choices(answer):
            self._take_choice(choice)
        self.usage = usage_of(answer.get("usage")) or self.usage
        self._total = _total_of(answer.get("usage")) or self._total

    def take_large(self, content: bytes) -> None:
        """Take the ids and the usage out of a large body without parsing its text and log-probabilities.

        vLLM lists the choices in the order of their indexes.
        """
        choices = 0
        for match in _GIVEN_IDS.finditer(content):
            name = _NAME_BEGINS.search(content[max(0, match.start() - 9) : match.start()])
            if name is None:
                continue
            ids = from_json(match[1])
            if name[1]:
                self.take_prompt(ids)
            else:
                self._take_choice({"index": choices, "token_ids": ids})
                choices += 1
        self.take_usage(content)

    def take_usage(self, content: bytes) -> None:
        """Take the usage out of the end of a body."""
        tail = content[-_TAIL_BYTES:]
        for match in reversed([*_USAGE.finditer(tail)]):
            with suppress(ValueError):
                usage, _ = _DECODER.raw_decode(tail[match.start(1) :].decode(errors="replace"))
                self.take({"usage": usage})
                return

    @property
    def begun(self) -> bool:
        """Whether a token was generated; ids that the engine hides count, too."""
        return bool(self._new) or not self._complete

    def count(self) -> int:
        """Tokens of the prompt and of all choices."""
        if self._total is not None:
            return self._total
        return len(self._prompt or ()) + len(self._new) + self._others

    def prompt_count(self) -> int:
        return len(self._prompt or ())

    def prompt(self) -> list[int]:
        return self._prompt or []

    def together(self) -> TokenIds | None:
        if self._prompt is None or not self._new or not self._complete:
            return None
        return (*self._prompt, *self._new)

    def _take_choice(self, choice: dict[str, Any]) -> None:
        if choice.get("index") == 0:
            self.take_prompt(choice.get("prompt_token_ids"))
            self._take_new(choice)
        elif isinstance(ids := choice.get("token_ids"), list):
            self._others += len(ids)

    def take_prompt(self, ids: Any) -> None:
        if isinstance(ids, list) and ids:
            self._prompt = ids

    def _take_new(self, choice: dict[str, Any]) -> None:
        ids = choice.get("token_ids")
        if isinstance(ids, list):
            self._new.extend(ids)
        elif "token_ids" in choice:
            # With an explicit null the engine hides tokens that it computed: the sequence has a hole.
            self._complete = False


class _Message:
    """Joins what choice 0 says, from the deltas of a stream or from the message of a body."""

    __slots__ = ("_calls", "_content", "_reasoning", "_role")

    def __init__(self) -> None:
        self._role = ""
        self._content: list[str] = []
        self._reasoning: list[str] = []
        # By index: ids, names and arguments. A name or id that is repeated counts once.
        self._calls: dict[int, tuple[list[str], list[str], list[str]]] = {}

    def take(self, answer: dict[str, Any]) -> None:
        for choice in _choices(answer):
            if choice.get("index") == 0:
                self._take_choice(choice)

    def joined(self) -> dict[str, Any] | None:
        if not self._role:
            return None
        message: dict[str, Any] = {"role": self._role, "content": "".join(self._content)}
        if self._reasoning:
            message["reasoning"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = [
                {
                    "id": "".join(ids[:1]),
                    "type": "function",
                    "function": {"name": "".join(names[:1]), "arguments": "".join(arguments)},
                }
                for _, (ids, names, arguments) in sorted(self._calls.items())
            ]
        return message

    def _take_choice(self, choice: dict[str, Any]) -> None:
        self._role = "completion" if "text" in choice else "assistant"
        delta = choice.get("delta") or choice.get("message")
        if not isinstance(delta, dict):
            delta = {"content": choice.get("text")}
        _append(self._content, delta.get("content"))
        # An engine that writes both names gives both the same text.
        _append(self._reasoning, delta.get("reasoning") or delta.get("reasoning_content"))
        if calls := delta.get("tool_calls"):
            self._take_calls(calls)

    def _take_calls(self, calls: Any) -> None:
        for position, call in enumerate(_objects(calls)):
            # The calls of a body have no index.
            index = call.get("index")
            ids, names, arguments = self._calls.setdefault(
                index if isinstance(index, int) else position, ([], [], [])
            )
            _append(ids, call.get("id"))
            if isinstance(function := call.get("function"), dict):
                _append(names, function.get("name"))
                _append(arguments, function.get("arguments"))


def _append(pieces: list[str], text: Any) -> None:
    if text and isinstance(text, str):
        pieces.append(text)


def usage_of(usage: Any) -> PromptUsage | None:
    """The prompt's usage; None if the engine does not report how much of the prompt was cached."""
    if not isinstance(usage, dict):
        return None
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    prompt = usage.get("prompt_tokens")
    return None if cached is None or prompt is None else PromptUsage(prompt, cached)


def _total_of(usage: Any) -> int | None:
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return total if isinstance(total, int) else None


def _choices(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return _objects(answer.get("choices"))


def _objects(values: Any) -> list[dict[str, Any]]:
    return [v for v in values if isinstance(v, dict)] if isinstance(values, list) else []


def _object(content: bytes) -> dict[str, Any]:
    """The JSON object in ``content``; empty for anything else, which is passed on without being read."""
    try:
        value = json.loads(content)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


class _Answer:
    """What both forms of an answer know of its token ids and its message."""

    __slots__ = (
        "_hide_ids",
        "_ids",
        "_message",
        "_named",
        "_prompts",
        "_recorded",
        "_session",
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
        self._named = named or as_it_is
        self._prompts = prompts or RecentPrompts()
        self._session = session
        self._ids = _Ids()
        self._message = _Message()
        self._hide_ids = hide_ids
        self._recorded = recorded
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
        max_bytes: int = _MAX_BYTES,
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
        self._tail = (self._tail + content[-_TAIL_BYTES:])[-_TAIL_BYTES:]
        return self._named(content)

    def finish(self) -> bytes:
        content = self._joined()
        rest = self._without_prompt(content) if self._recorded else content
        bare = without_ids(rest) if self._recorded else content
        if self._size <= _LARGE_BYTES or (self._recorded and len(rest) <= _LARGE_BYTES):
            answer = _object(rest)
            self._ids.take(answer)
            self._message.take(answer)
        elif self._recorded:
            self._ids.take_large(rest)
            if len(bare) <= _LARGE_BYTES:
                self._message.take(_object(bare))
        else:
            self._ids.take_usage(self._tail + content)
        return self._named(bare if self._hide_ids else content)

    def _joined(self) -> bytes:
        content = b"".join(self._chunks)
        self._chunks.clear()
        return content


class StreamAnswer(_Answer):
    """A response of server-sent events; each event is passed on when its last byte has arrived."""

    __slots__ = ("_events", "_progress")

    def __init__(
        self,
        *,
        recorded: bool,
        hide_ids: bool,
        named: Callable[[bytes], bytes] | None = None,
        prompts: RecentPrompts | None = None,
        session: str = "",
    ) -> None:
        super().__init__(hide_ids=hide_ids, recorded=recorded, named=named, prompts=prompts, session=session)
        self._events = Events()
        self._progress = Progress()

    def feed(self, chunk: bytes) -> bytes:
        return self._named(b"".join([self._event(event) for event in self._events.take(chunk)]))

    def progress(self) -> Progress:
        """What was read, of an engine that is gone: what it sent of another event, or of its end, is of no use."""
        self._events.rest()
        self.failed = b""
        self._progress.prompt = self._ids.prompt()
        return self._progress

    def finish(self) -> bytes:
        rest = self._events.rest()
        return self._named(self._event(rest)) if rest else b""

    def _event(self, event: bytes) -> bytes:
        if self.failed or _gives_up(event):
            self.failed += event
            return b""
        rest = self._without_prompt(event) if self._recorded else event
        data = data_of(rest)
        if not data:
            return event
        if data == _DONE:
            self.begun = self.ended = True
            return event
        if not self._recorded:
            self.begun = True
            if b'"usage"' in data:
                self._ids.take(_object(data))
            return event
        answer = _object(data)
        self._ids.take(answer)
        self._message.take(answer)
        self._progress.take(answer)
        self.begun = self._ids.begun
        if not self._hide_ids:
            return event
        return b"" if _is_only_for_ids(answer) else without_ids(rest)


def _gives_up(event: bytes) -> bool:
    """Whether this event of a stream is the engine's own failure, as when its core process died."""
    error = _object(data_of(event)).get("error") if event.startswith(_ERROR) else None
    return isinstance(error, dict) and isinstance(code := error.get("code"), int) and code >= _FAILURE


def too_large(max_bytes: int) -> InvalidParameterError:
    return InvalidParameterError(
        f"The engine's answer has more than {max_bytes} bytes. Ask for less (n, logprobs, echo), with 'stream', or "
        "outside of a session; the operator's limit is CWM_MAX_ANSWER_BYTES.",
        limit_bytes=max_bytes,
    )


def _is_only_for_ids(answer: dict[str, Any]) -> bool:
    """Whether vLLM sends this chat event only because ids were requested.

    A token that a tool or reasoning parser withholds has an empty delta; without ids vLLM sends no event for it.
    """
    choices = _choices(answer)
    return len(choices) == 1 and (
        choices[0].get("delta") == {}
        and choices[0].get("finish_reason") is None
        and choices[0].get("logprobs") is None
    )
