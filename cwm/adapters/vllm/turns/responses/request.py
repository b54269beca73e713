"""A request of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from http import HTTPStatus
from typing import Any, Final, Self
from uuid import uuid4

from cwm.adapters.vllm.turns.answers import as_it_is
from cwm.adapters.vllm.turns.body import RequestBody, objects, strings
from cwm.adapters.vllm.turns.engine_ids import HEADERS
from cwm.adapters.vllm.turns.refusals import Refusal
from cwm.adapters.vllm.turns.responses.answer import ResponseIds, ResponsesReader
from cwm.adapters.vllm.turns.responses.items import (
    input_items,
    input_messages,
    media_in,
    references,
    whole_answers,
)
from cwm.domain.constraints import SchemaLimits
from cwm.domain.errors import InvalidParameterError
from cwm.domain.messages import message_of, profile_of
from cwm.domain.prefix import TokenIds
from cwm.domain.principal import Principal
from cwm.domain.response import Item, ResponseAsk, named
from cwm.domain.turn import Message, Profile
from cwm.ports.turn_wire import TurnAnswer

OURS: Final = ("request_id", "enable_response_messages", "previous_input_messages")
"""Fields of vLLM that only the gateway sets."""
IGNORED: Final = frozenset({"client_metadata", "conversation", "stream_options"})
"""Fields that clients send and vLLM ignores without a change of the answer; the gateway serves ``conversation`` itself."""

_FREE_CHOICES: Final = (None, "none", "auto")
_CHOICES: Final = ("function", "custom")


@dataclass(frozen=True)
class ResponsesRequest(RequestBody):
    """A :class:`cwm.ports.turn_wire.TurnRequest` of ``/v1/responses``. ``response_id`` names its response.

    ``before`` are the items that it goes on from, ``own`` those of its input; None until what it refers to is known.
    """

    response_id: str = field(default_factory=lambda: f"resp_{uuid4().hex}")
    before: tuple[Item, ...] | None = None
    own: tuple[Item, ...] | None = None

    ANSWER_LIMITS = ("max_output_tokens",)
    operation = "chat"
    prompt_tokens = None
    sequences = 1

    def require_sequences(self, _most: int) -> None:
        """A response is one answer."""

    def require_constraints(self, schemas: SchemaLimits) -> None:
        """CWM-1003 for a schema that would take vLLM long to compile, and for what it or CWM would leave out without a word."""
        if self.fields.get("background"):
            raise InvalidParameterError(
                "Background mode is not supported with this model.", field="background"
            )
        input_value = self.fields.get("input")
        if isinstance(input_value, list) and len(objects(input_value)) < len(input_value):
            raise InvalidParameterError("'input' is a text or a list of objects.", field="input")
        if self.fields.get("conversation") is not None and self._conversation is None:
            raise InvalidParameterError(
                "'conversation' is an id, or an object with one.", field="conversation"
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
        schemas.require_tools(self.fields.get("tools"), _constraining(self.fields))

    async def require_media(self, asker: Principal) -> None:
        await self.media.require([{"content": [*media_in(self._input)]}], asker)

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
        return input_messages(self.fields.get("instructions"), self._input)

    @property
    def _input(self) -> Any:
        return self.fields.get("input") if self.before is None else [*self.before, *(self.own or ())]

    @cached_property
    def response(self) -> ResponseAsk:
        own = input_items(self.fields.get("input")) if self.own is None else self.own
        previous = self.fields.get("previous_response_id")
        return ResponseAsk(
            self.response_id,
            tuple(map(named, own)),
            previous if isinstance(previous, str) else None,
            references(own),
            self.fields.get("store") is not False,
            self._conversation,
        )

    @property
    def _conversation(self) -> str | None:
        named_by = self.fields.get("conversation")
        conversation = named_by.get("id") if isinstance(named_by, dict) else named_by
        return conversation if isinstance(conversation, str) else None

    def after(self, items: Sequence[Item], items_by_id: Mapping[str, Item]) -> Self:
        own = input_items(self.fields.get("input"))
        own_items = tuple(
            items_by_id.get(str(item.get("id")), item) if references([item]) else item for item in own
        )
        return replace(self, before=tuple(items), own=own_items)

    def response_of(self, answer: TurnAnswer) -> Mapping[str, Any] | None:
        return answer.response() if isinstance(answer, ResponseIds) else None

    def _fields(self) -> Mapping[str, Any]:
        """Fields of the response that the engine does not know, or by another name."""
        ask = self.response
        fields = {
            "model": self.served and self.model,
            "previous_response_id": ask.previous,
            "conversation": ask.conversation and {"id": ask.conversation},
        }
        return {name: value for name, value in fields.items() if value is not None}

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

    def engine_headers(self, *, recorded: bool) -> Mapping[str, str]:  # noqa: ARG002 - what tells ids also tells that vLLM broke off
        return HEADERS

    def body(self, cache_salt: str, *, weights: str, recorded: bool, prompt: TokenIds | None = None) -> bytes:  # noqa: ARG002 - the ids come without a field
        ours: dict[str, Any] = {"request_id": self.response_id, "store": False}
        sent = whole_answers(self._input)
        if self.before is not None:
            ours["previous_response_id"] = None
        if self.before is not None or sent != self._input:
            ours["input"] = sent
        if self.response.conversation is not None:
            ours["conversation"] = None
        return self._sent(cache_salt, weights, prompt, **ours)

    def generation_ids(self, request_id: str) -> Sequence[str]:  # noqa: ARG002 - vLLM names it after the response
        return (f"{self.response_id}_0",)

    def answer(self, *, status: int, streamed: bool, recorded: bool, session: str = "") -> TurnAnswer:  # noqa: ARG002 - ids come only if they were requested
        if status != HTTPStatus.OK:
            return Refusal("input")
        return ResponseIds(
            ResponsesReader(self._fields()),
            streamed=streamed,
            max_bytes=self.max_answer_bytes,
            named=as_it_is,
            prompts=self.prompts,
            session=session,
        )


def _constraining(fields: dict[str, Any]) -> Callable[[Any], bool]:
    """Picks the tools and namespaces whose arguments vLLM compiles, together, so that an answer is a valid call of one."""
    choice = fields.get("tool_choice")
    if isinstance(choice, dict) and (name := choice.get("name")):
        return lambda tool: any(each.get("name") == name for each in _functions([tool]))
    if choice not in _FREE_CHOICES:
        return lambda _: True
    return lambda tool: any(each.get("strict") is True for each in _functions([tool]))


def _functions(tools: Any) -> Iterable[dict[str, Any]]:
    """The functions among tools, those in namespaces included."""
    for tool in objects(tools):
        yield tool
        yield from objects(tool.get("tools"))
