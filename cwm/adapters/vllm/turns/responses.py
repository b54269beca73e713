"""A request of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from typing import Any, Final
from uuid import uuid4

from cwm.adapters.vllm.turns.body import RequestBody, objects, strings
from cwm.adapters.vllm.turns.engine_ids import HEADERS, EngineIds
from cwm.adapters.vllm.turns.openai_answer import as_it_is, renaming
from cwm.adapters.vllm.turns.openai_refusals import Refusal
from cwm.adapters.vllm.turns.responses_answer import ResponsesReader
from cwm.adapters.vllm.turns.responses_items import input_messages, media_in
from cwm.domain.constraints import SchemaLimits
from cwm.domain.errors import InvalidParameterError
from cwm.domain.messages import message_of, profile_of
from cwm.domain.prefix import TokenIds
from cwm.domain.turn import Message, Profile
from cwm.ports.turn_wire import TurnAnswer

OURS: Final = ("request_id", "enable_response_messages", "previous_input_messages")
"""Fields of vLLM that only the gateway sets."""
IGNORED: Final = frozenset({"client_metadata", "stream_options"})
"""Fields that clients send and vLLM ignores without a change of the answer."""

_FREE_CHOICES: Final = (None, "none", "auto")
_CHOICES: Final = ("function", "custom")
_NO_HEADERS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True)
class ResponsesRequest(RequestBody):
    """A :class:`cwm.ports.turn_wire.TurnRequest` of ``/v1/responses``. ``response_id`` names its response."""

    response_id: str = field(default_factory=lambda: f"resp_{uuid4().hex}")

    ANSWER_LIMITS = ("max_output_tokens",)
    operation = "chat"
    prompt_tokens = None
    sequences = 1

    def require_sequences(self, _most: int) -> None:
        """A response is one answer."""

    def require_constraints(self, schemas: SchemaLimits) -> None:
        """CWM-1003 for a schema that would take vLLM long to compile, and for what it would leave out without a word."""
        if self.fields.get("background"):
            raise InvalidParameterError(
                "Background mode is not supported with this model.", field="background"
            )
        choice = self.fields.get("tool_choice")
        if isinstance(choice, dict) and choice.get("type") not in _CHOICES:
            raise InvalidParameterError(
                f"Tool choice '{str(choice.get('type'))[:64]}' is not supported with this model.",
                field="tool_choice",
            )
        text = self.fields.get("text")
        schemas.require("text.format", text.get("format") if isinstance(text, dict) else None)
        schemas.require("structured_outputs", self.fields.get("structured_outputs"))
        tools = self.fields.get("tools")
        constrained = (
            choice not in _FREE_CHOICES
            or self.fields.get("parallel_tool_calls") is False
            or any(tool.get("strict") is True for tool in _functions(tools))
        )
        schemas.require_tools(tools, together=constrained)

    async def require_media(self) -> None:
        await self.media.require([{"content": [*media_in(self.fields.get("input"))]}])

    def require_recordable(self) -> None:
        """Every response can be recorded: the engine tells all tokens, whatever its body hides."""

    def texts(self) -> Iterable[str]:
        return strings(self._contents)

    def messages(self) -> tuple[Message, ...]:
        return self._messages

    def profile(self) -> Profile:
        return self._profile

    @cached_property
    def _contents(self) -> list[dict[str, Any]]:
        return input_messages(self.fields.get("instructions"), self.fields.get("input"))

    @cached_property
    def _messages(self) -> tuple[Message, ...]:
        return tuple(map(message_of, self._contents))

    @cached_property
    def _profile(self) -> Profile:
        return profile_of(self._contents, self.fields.get("tools"))

    def require_continuable(self) -> None:
        raise InvalidParameterError(
            "A response continues another by 'previous_response_id' or 'conversation'; "
            "only a chat can be continued by CWM-Continue: ask /v1/chat/completions.",
            field="CWM-Continue",
        )

    def template_options(self) -> Mapping[str, Any]:
        return {}

    def engine_headers(self, *, recorded: bool) -> Mapping[str, str]:
        return HEADERS if recorded else _NO_HEADERS

    def body(self, cache_salt: str, *, weights: str, recorded: bool, prompt: TokenIds | None = None) -> bytes:  # noqa: ARG002 - the ids come without a field
        return self._sent(cache_salt, weights, prompt, request_id=self.response_id, store=False)

    def generation_ids(self, request_id: str) -> Sequence[str]:  # noqa: ARG002 - vLLM names it after the response
        return (f"{self.response_id}_0",)

    def answer(self, *, status: int, streamed: bool, recorded: bool, session: str = "") -> TurnAnswer:  # noqa: ARG002 - ids come only if they were requested
        if status != HTTPStatus.OK:
            return Refusal("input")
        return EngineIds(
            ResponsesReader(),
            streamed=streamed,
            max_bytes=self.max_answer_bytes,
            named=as_it_is if self.served is None else renaming(self.served, self.model or ""),
            prompts=self.prompts,
            session=session,
        )


def _functions(tools: Any) -> Iterable[dict[str, Any]]:
    """The functions among tools, those in namespaces included."""
    for tool in objects(tools):
        yield tool
        yield from objects(tool.get("tools"))
