"""A request body of the pass-through: parsed once, and sent to vLLM with one or two fields added."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from cwm.adapters.vllm import request_fields, wire
from cwm.adapters.vllm.media import MediaRule
from cwm.adapters.vllm.prompt_ids import RecentPrompts
from cwm.adapters.vllm.turn_answer import BodyAnswer, StreamAnswer, renaming
from cwm.domain.constraints import SchemaLimits
from cwm.domain.errors import InvalidParameterError
from cwm.domain.messages import message_of, profile_of
from cwm.domain.prefix import TokenIds
from cwm.domain.turn import Message, Profile
from cwm.ports.turn_wire import TurnAnswer

_CHAT: Final = "chat"
_COMPLETION: Final = "text_completion"
_OURS: Final = ("cache_salt", "kv_transfer_params")
# vLLM also reads these fields from here, without a check: it answers 500 if ``kv_transfer_params`` is not an object.
_UNCHECKED: Final = "vllm_xargs"
_PASSED: Final = "CWM_PASSED_FIELDS"
_NO_HEADERS: Final[Mapping[str, str]] = {}
_CONSTRAINTS: Final = ("response_format", "structured_outputs")
# Fields of vLLM by which a caller would order other requests, or reach extensions without a check.
_GUARDED: Final = frozenset({"priority", "ec_transfer_params", _UNCHECKED})
_ROUTING_HEADERS: Final = ("x-data-parallel-", "x-vllm-")
# Fields of OpenAI that its clients send and vLLM ignores without a change of the answer.
_IGNORED: Final = frozenset(
    {
        "metadata",
        "modalities",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)
_KNOWN: Final = {
    _CHAT: request_fields.CHAT | _IGNORED,
    _COMPLETION: request_fields.COMPLETIONS | _IGNORED,
}
# Fields that a chat template reads, and fields that end a prompt in another way than with the assistant's turn.
_TEMPLATE: Final = ("tools", "documents", "chat_template", "chat_template_kwargs")
_ENDINGS: Final = {"add_generation_prompt": True, "continue_final_message": False, "echo": False}
_FREE_CHOICES: Final = (None, "none", "auto")


@dataclass(frozen=True)
class OpenAiRequest:
    """A :class:`cwm.ports.turn_wire.TurnRequest` of ``/v1/completions`` or ``/v1/chat/completions``."""

    fields: dict[str, Any]
    raw: bytes
    operation: str | None
    max_answer_bytes: int
    media: MediaRule = field(default_factory=MediaRule)
    prompts: RecentPrompts | None = None
    served: str | None = None
    """The model's name in the engine, where the client uses another."""

    @property
    def is_chat(self) -> bool:
        return self.operation == _CHAT

    @property
    def model(self) -> str | None:
        model = self.fields.get("model")
        return model if isinstance(model, str) else None

    @property
    def prompt_tokens(self) -> int | None:
        prompt = self.fields.get("prompt")
        if self.is_chat or not isinstance(prompt, list):
            return None
        prompts = [prompt] if _is_ids(prompt) else prompt
        return max((len(ids) for ids in prompts if isinstance(ids, list) and _is_ids(ids)), default=None)

    @property
    def sequences(self) -> int:
        """CWM-1003 if ``n`` is not a number of answers."""
        return self._prompts() * _answers(self.fields)

    @property
    def streamed(self) -> bool:
        return bool(self.fields.get("stream"))

    def _prompts(self) -> int:
        if self.is_chat:
            return 1
        prompt, embedded = self.fields.get("prompt"), self.fields.get("prompt_embeds")
        count = len(prompt) if isinstance(prompt, list) and not _is_ids(prompt) else int(prompt is not None)
        count += len(embedded) if isinstance(embedded, list) else int(embedded is not None)
        return max(1, count)

    def require_sequences(self, most: int) -> None:
        """CWM-1003 for more than ``most`` sequences."""
        if self.sequences <= most:
            return
        raise InvalidParameterError(
            f"The request has {self.sequences} answers, prompts times 'n'; at most {most} are allowed "
            "in one request (CWM_SEQUENCES). Ask for fewer in one request.",
            field="n" if _answers(self.fields) > 1 else "prompt",
            limit=most,
            setting="CWM_SEQUENCES",
        )

    async def require_media(self) -> None:
        await self.media.require(self.fields.get("messages"))

    def require_recordable(self) -> None:
        prompt = self.fields.get("prompt")
        if not self.is_chat and isinstance(prompt, list) and len(prompt) > 1 and not _is_ids(prompt):
            raise InvalidParameterError("A session takes one prompt at a time.", field="prompt")
        if not self.is_chat and self.fields.get("echo"):
            raise InvalidParameterError(
                "In a session the engine does not echo the prompt; ask without 'echo'.", field="echo"
            )
        if self.is_chat and self.fields.get("include_reasoning") is False:
            raise InvalidParameterError(
                "A session needs all tokens of an answer; ask without 'include_reasoning': false.",
                field="include_reasoning",
            )

    def texts(self) -> Iterable[str]:
        return _strings(self.fields.get("messages" if self.is_chat else "prompt"))

    def messages(self) -> tuple[Message, ...]:
        return self._messages

    def profile(self) -> Profile:
        return self._profile

    @cached_property
    def _messages(self) -> tuple[Message, ...]:
        return tuple(message_of(content) for content in self._contents())

    @cached_property
    def _profile(self) -> Profile:
        return profile_of(self._contents(), self.fields.get("tools")) if self.is_chat else Profile()

    def _contents(self) -> list[dict[str, Any]]:
        if self.is_chat:
            return _objects(self.fields.get("messages"))
        prompt = self.fields.get("prompt")
        prompts = prompt if isinstance(prompt, list) else [prompt]
        return [{"role": "prompt", "content": text} for text in prompts if isinstance(text, str)]

    def require_continuable(self) -> None:
        if not self.is_chat:
            raise InvalidParameterError(
                "Only a chat can be continued with new messages: ask /v1/chat/completions.",
                field="CWM-Continue",
            )
        for name, usual in _ENDINGS.items():
            if self.fields.get(name, usual) not in {usual, None}:
                raise InvalidParameterError(f"A context is continued without '{name}'.", field=name)
        if not self._contents() or not all(map(_is_text_only, self._contents())):
            raise InvalidParameterError(
                "A context is continued with at least one message, of text only.", field="messages"
            )

    def template_options(self) -> Mapping[str, Any]:
        return {name: self.fields[name] for name in _TEMPLATE if self.fields.get(name) is not None}

    def addressed_to(self, model: str) -> OpenAiRequest:
        return self if self.model in {None, model} else replace(self, served=model)

    def body(self, cache_salt: str, *, weights: str, recorded: bool, prompt: TokenIds | None = None) -> bytes:
        """The client's bytes with our fields after the last one.

        A JSON parser keeps the last of equal names, so this also overrides a ``return_token_ids: false``.
        """
        ours: dict[str, Any] = {"cache_salt": cache_salt}
        if weights or prompt is not None:
            ours["kv_transfer_params"] = wire.transfer_params(weights, prompt)
        if recorded:
            ours["return_token_ids"] = True
        if self.served is not None:
            ours["model"] = self.served
        if json.detect_encoding(self.raw) not in {"utf-8", "utf-8-sig"}:
            return json.dumps({**self.fields, **ours}).encode()
        beginning = self.raw.rstrip(b" \t\r\n")[:-1]
        comma = b"," if self.fields else b""
        return beginning + comma + json.dumps(ours, separators=(",", ":")).encode()[1:]

    def generation_ids(self, request_id: str) -> Sequence[str]:
        if self.is_chat:
            return (f"chatcmpl-{request_id}",)
        prompt = self.fields.get("prompt")
        count = len(prompt) if isinstance(prompt, list) and not _is_ids(prompt) else 1
        return tuple(f"cmpl-{request_id}-{number}" for number in range(count))

    def answer(self, *, streamed: bool, recorded: bool, session: str = "") -> TurnAnswer:
        hide_ids = recorded and not self.fields.get("return_token_ids")
        named = None if self.served is None else renaming(self.served, self.model or "")
        if streamed:
            return StreamAnswer(
                recorded=recorded, hide_ids=hide_ids, named=named, prompts=self.prompts, session=session
            )
        return BodyAnswer(
            hide_ids=hide_ids,
            recorded=recorded,
            max_bytes=self.max_answer_bytes,
            named=named,
            prompts=self.prompts,
            session=session,
        )


@dataclass(frozen=True, slots=True)
class OpenAiWire:
    """The port :class:`cwm.ports.turn_wire.TurnWire` for vLLM. ``max_answer_bytes``: of an answer in one piece whose ids are read."""

    max_answer_bytes: int = 32 * 1024 * 1024
    schemas: SchemaLimits = field(default_factory=SchemaLimits)
    sequences: int = 64
    media: MediaRule = field(default_factory=MediaRule)
    passed: frozenset[str] = frozenset()
    prompts: RecentPrompts = field(default_factory=RecentPrompts)

    @property
    def guarded(self) -> frozenset[str]:
        """Fields of vLLM that are refused."""
        return _GUARDED - self.passed

    def read(self, path: str, body: bytes, headers: Mapping[str, str] = _NO_HEADERS) -> OpenAiRequest:
        fields, operation = _json_object(body), _operation(path.partition("?")[0])
        unchecked = fields.get(_UNCHECKED)
        for name in _OURS:
            if name in fields or (isinstance(unchecked, dict) and name in unchecked):
                raise InvalidParameterError(f"'{name}' is set by the gateway; leave it out.", field=name)
        self._require_known(fields, operation, headers)
        for name in _CONSTRAINTS:
            self.schemas.require(name, fields.get(name))
        self.schemas.require_tools(fields.get("tools"), together=_constrained_to_tools(fields))
        request = OpenAiRequest(fields, body, operation, self.max_answer_bytes, self.media, self.prompts)
        request.require_sequences(self.sequences)
        return request

    def _require_known(
        self, fields: Mapping[str, Any], operation: str | None, headers: Mapping[str, str]
    ) -> None:
        """Nothing that a caller sends is dropped, and nothing passes that the gateway does not know."""
        known = (_KNOWN.get(operation or "", frozenset()) - self.guarded) | self.passed
        refused = sorted(fields.keys() - known)
        refused += [name for name in headers if name.startswith(_ROUTING_HEADERS) and name not in self.passed]
        if refused:
            name = refused[0]
            why = "is for the operator to set" if name in _GUARDED or name in headers else "is not known"
            raise InvalidParameterError(
                f"'{name[:128]}' {why}; leave it out, or let the operator name it in {_PASSED}.",
                field=name[:128],
                setting=_PASSED,
            )


def _constrained_to_tools(fields: dict[str, Any]) -> bool:
    """Whether vLLM compiles the tools, so that an answer is a valid call of one."""
    if fields.get("tool_choice") not in _FREE_CHOICES or fields.get("parallel_tool_calls") is False:
        return True
    tools = fields.get("tools")
    functions = (
        (tool.get("function") for tool in tools if isinstance(tool, dict)) if isinstance(tools, list) else ()
    )
    return any(isinstance(function, dict) and function.get("strict") is True for function in functions)


def _operation(path: str) -> str | None:
    if path.endswith("/chat/completions"):
        return _CHAT
    return _COMPLETION if path.endswith("/completions") else None


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidParameterError(
            f"The request body is not valid JSON: {_reason(error)}.", field="body"
        ) from error
    if not isinstance(fields, dict):
        raise InvalidParameterError("The request body must be a JSON object.", field="body")
    return fields


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return "it is not Unicode text" if isinstance(error, UnicodeError) else "a number has too many digits"


def _answers(fields: dict[str, Any]) -> int:
    """Answers or beams of each prompt; 1 if it is less, which the engine refuses."""
    value = fields.get("n")
    if value is None:
        return 1
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 != 0:
        raise InvalidParameterError("'n' must be a whole number.", field="n")
    return max(1, int(value))


def _is_text_only(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    parts = content if isinstance(content, list) else ()
    return all(
        isinstance(part, str) or (isinstance(part, dict) and part.get("type") == "text") for part in parts
    )


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _is_ids(prompt: list[Any]) -> bool:
    return bool(prompt) and isinstance(prompt[0], int)


def _strings(value: Any) -> Iterator[str]:
    """Every string in a prompt or in messages' ``content``, ``text`` and ``reasoning``."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in () if _is_ids(value) else value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for name in ("content", "text", "reasoning"):
            if (inner := value.get(name)) is not None:
                yield from _strings(inner)
