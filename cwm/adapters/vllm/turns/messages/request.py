"""A request to Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Any, ClassVar, Final

from cwm.adapters.vllm.turns import engine_ids
from cwm.adapters.vllm.turns.answers import as_it_is
from cwm.adapters.vllm.turns.body import RequestBody, objects
from cwm.adapters.vllm.turns.engine_ids import EngineIds
from cwm.adapters.vllm.turns.messages.answer import MessageReader, RefusalAnswer, renaming
from cwm.adapters.vllm.turns.messages.chat import chat_messages, chat_tools
from cwm.domain.constraints import SchemaLimits
from cwm.domain.errors import InvalidParameterError
from cwm.domain.messages import message_of, profile_of
from cwm.domain.prefix import TokenIds
from cwm.domain.principal import Principal
from cwm.domain.turn import Message, Profile
from cwm.ports.turn_wire import TurnAnswer

# Fields of Anthropic that clients send and vLLM ignores without a change of the answer.
UNHEEDED: Final = frozenset(
    {"cache_control", "diagnostics", "service_tier", "speed", "user_profile_id", "workspace_id"}
)
# Fields of Anthropic that ask for more than vLLM does. Empty they ask for nothing.
UNSERVED: Final = frozenset(
    {
        "billing_policy",
        "compaction",
        "container",
        "context_management",
        "fallback_credit_token",
        "fallbacks",
        "inference_geo",
        "mcp_servers",
        "output_format",
        "thread",
    }
)
_EMPTY: Final[tuple[Any, ...]] = (None, [], {})
# Edits that only shorten a prompt. vLLM sends the model what the client sends.
_CLEARING: Final = "clear_"
_SOURCES: Final = ("base64", "url")
_RESULTS: Final = ("text", "image", "tool_reference")
_FORCED: Final = ("any", "tool")


@dataclass(frozen=True)
class MessagesRequest(RequestBody):
    """A :class:`cwm.ports.turn_wire.TurnRequest` of ``/v1/messages``."""

    ANSWER_LIMITS: ClassVar[tuple[str, ...]] = ("max_tokens",)

    @property
    def operation(self) -> str | None:
        return "chat"

    @property
    def prompt_tokens(self) -> int | None:
        return None

    @property
    def sequences(self) -> int:
        return 1

    def require_sequences(self, most: int) -> None:
        """There is one answer."""

    def require_constraints(self, schemas: SchemaLimits) -> None:
        """CWM-1003 for what vLLM would leave undone, and for a schema that would take it long to compile."""
        if (undone := next(_undone(self.fields), None)) is not None:
            raise InvalidParameterError(undone, field=undone.partition(":")[0])
        tools = [*objects(self.fields.get("tools")), *_later_tools(self.fields.get("messages"))]
        schemas.require("output_config", self.fields.get("output_config"))
        schemas.require_tools(tools, _constraining(self.fields.get("tool_choice")))

    async def require_media(self, asker: Principal) -> None:
        await self.media.require(self._contents, asker)

    def require_recordable(self) -> None:
        """Everything is."""

    def texts(self) -> Iterable[str]:
        return _strings([self.fields.get("system"), self.fields.get("messages")])

    def messages(self) -> tuple[Message, ...]:
        return self._messages

    @cached_property
    def _messages(self) -> tuple[Message, ...]:
        return tuple(message_of(content) for content in self._contents)

    def profile(self) -> Profile:
        return profile_of(self._contents, chat_tools(self.fields.get("tools")))

    @cached_property
    def _contents(self) -> list[dict[str, Any]]:
        return chat_messages(self.fields.get("system"), self.fields.get("messages"))

    def require_continuable(self) -> None:
        parts = (part for message in self._contents for part in objects(message.get("content")))
        if not self._contents or any(part.get("type") != "text" for part in parts):
            raise InvalidParameterError(
                "A context is continued with at least one message, of text only.", field="messages"
            )

    def template_options(self) -> Mapping[str, Any]:
        options = {
            "tools": chat_tools(self.fields.get("tools")),
            "chat_template_kwargs": self.fields.get("chat_template_kwargs"),
        }
        return {name: value for name, value in options.items() if value is not None}

    def engine_headers(self, *, recorded: bool) -> Mapping[str, str]:
        return engine_ids.HEADERS if recorded else {}

    def body(self, cache_salt: str, *, weights: str, recorded: bool, prompt: TokenIds | None = None) -> bytes:  # noqa: ARG002 - a header requests the ids
        thinking = self.fields.get("thinking")
        budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
        if self.capped is None or not isinstance(budget, int) or budget < self.capped:
            return self._sent(cache_salt, weights, prompt)
        # vLLM wants it below max_tokens.
        lower = {**(thinking or {}), "budget_tokens": self.capped - 1}
        return self._sent(cache_salt, weights, prompt, thinking=lower)

    def generation_ids(self, request_id: str) -> Sequence[str]:
        return (f"chatcmpl-{request_id}",)

    def answer(self, *, status: int, streamed: bool, recorded: bool, session: str = "") -> TurnAnswer:  # noqa: ARG002 - ids are found where they are
        if status != HTTPStatus.OK:
            return RefusalAnswer(status, self.model or "")
        return EngineIds(
            MessageReader(),
            streamed=streamed,
            max_bytes=self.max_answer_bytes,
            named=as_it_is if self.served is None else renaming(self.served, self.model or ""),
            prompts=self.prompts,
            session=session,
        )


@dataclass(frozen=True)
class CountRequest(MessagesRequest):
    """A request of ``/v1/messages/count_tokens``: it generates nothing, and no KV is used."""

    ANSWER_LIMITS = ()

    @property
    def operation(self) -> str | None:
        return None

    @property
    def streamed(self) -> bool:
        return False

    def body(self, cache_salt: str, *, weights: str, recorded: bool, prompt: TokenIds | None = None) -> bytes:  # noqa: ARG002
        return self.raw if self.served is None else self._spliced({"model": self.served})


def _undone(fields: dict[str, Any]) -> Iterator[str]:
    """What vLLM would silently leave undone, in the words of Anthropic's API."""
    for name in sorted(UNSERVED & fields.keys()):
        if fields[name] not in _EMPTY and not _is_only_clearing(name, fields[name]):
            yield f"{name}: Extra inputs are not permitted"
    for number, tool in _numbered(fields.get("tools")):
        if (kind := tool.get("type", "custom")) not in {"custom", None}:
            yield _unexpected(f"tools.{number}", kind, ("custom",))
    for number, message in _numbered(fields.get("messages")):
        for position, block in _numbered(message.get("content")):
            yield from _undone_of(f"messages.{number}.content.{position}", block)


def _undone_of(path: str, block: dict[str, Any]) -> Iterator[str]:
    if block.get("type") == "image":
        source = block.get("source")
        kind = source.get("type") if isinstance(source, dict) else None
        if kind not in _SOURCES:
            yield _unexpected(f"{path}.image.source", kind, _SOURCES)
    elif block.get("type") == "tool_result":
        for number, item in _numbered(block.get("content")):
            inner = f"{path}.tool_result.content.{number}"
            if item.get("type") not in _RESULTS:
                yield _unexpected(inner, item.get("type"), _RESULTS)
            yield from _undone_of(inner, item)


def _numbered(value: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects in a list, with their positions."""
    for number, item in enumerate(value if isinstance(value, list) else ()):
        if isinstance(item, dict):
            yield number, item


def _unexpected(path: str, kind: Any, expected: Sequence[str]) -> str:
    tags = ", ".join(f"'{tag}'" for tag in expected)
    return f"{path}: Input tag '{str(kind)[:128]}' found using 'type' does not match any of the expected tags: {tags}"


def _is_only_clearing(name: str, value: Any) -> bool:
    if name != "context_management" or not isinstance(value, dict) or value.keys() != {"edits"}:
        return False
    return all(str(edit.get("type")).startswith(_CLEARING) for edit in objects(value["edits"]))


def _later_tools(messages: Any) -> Iterator[dict[str, Any]]:
    """Tools that a system message adds."""
    for message in objects(messages):
        for block in objects(message.get("content")):
            change = block.get("tool")
            if isinstance(change, dict) and isinstance(tool := change.get("definition"), dict):
                yield tool


def _constraining(choice: Any) -> Callable[[dict[str, Any]], bool]:
    """Picks the tools whose arguments vLLM compiles, together, so that an answer is a valid call of one."""
    if isinstance(choice, dict):
        if choice.get("type") == "tool" and (name := choice.get("name")):
            return lambda tool: tool.get("name") == name
        if choice.get("type") in _FORCED:
            return lambda _: True
    return lambda tool: tool.get("strict") is True


def _strings(values: list[Any]) -> Iterator[str]:
    """Every text, without inline media."""
    while values:
        value = values.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            values.extend(value)
        elif isinstance(value, dict):
            values.extend(inner for name, inner in value.items() if name != "data")
