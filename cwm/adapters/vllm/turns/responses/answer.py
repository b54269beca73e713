"""Reads what a response says: its items, as they arrive or at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cwm.adapters.vllm.turns.body import objects
from cwm.adapters.vllm.turns.engine_ids import EngineIds
from cwm.adapters.vllm.turns.openai.tokens import cached_of, prompt_usage
from cwm.adapters.vllm.turns.responses.items import answer_message
from cwm.domain.figures import is_odd, token_count
from cwm.ports.turn_wire import PromptUsage

_COMPLETED, _CUT_OFF, _INCOMPLETE = "response.completed", "response.incomplete", "incomplete"
_ENDS: Final = frozenset({_COMPLETED, _CUT_OFF, "response.failed"})
# The events that bring a piece of an item, and where it belongs.
_DELTA: Final = ".delta"
_DELTAS: Final = {
    "response.output_text.delta": "text",
    "response.reasoning_text.delta": "text",
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}


_CANCELLED: Final = "cancelled"
_DETAILS: Final = "input_tokens_details"


class ResponsesReader:
    """An :class:`cwm.adapters.vllm.turns.engine_ids.AnswerReader`. ``fields`` are fields of the response that the engine does not know."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields
        self.aborted = False
        self.begun = False
        self.ended = False
        self.failed = False
        self._items: dict[int, dict[str, Any]] = {}
        self._pieces: dict[int, list[str]] = {}
        self.response: dict[str, Any] | None = None

    def take(self, event: dict[str, Any]) -> dict[str, Any] | None:
        kind = event.get("type")
        if kind is None:
            self.response = {**event, **self._fields}
            self.aborted = event.get("status") == _CANCELLED
            return self.response if self._fields else None
        self.begun = self.begun or (str(kind).endswith(_DELTA) and bool(event.get("delta")))
        index = event.get("output_index")
        if kind in {"response.output_item.added", "response.output_item.done"}:
            if isinstance(item := event.get("item"), dict) and isinstance(index, int):
                self._items[index] = item
                self._pieces[index] = []
        elif kind in _DELTAS:
            if isinstance(delta := event.get("delta"), str) and isinstance(index, int):
                self._pieces.setdefault(index, []).append(delta)
        elif kind == "error":
            self.failed = True
        elif kind in _ENDS:
            self.ended = True
            response = event.get("response")
            self.aborted = isinstance(response, dict) and response.get("status") == _CANCELLED
            self.response = event.get("response") and {**event["response"], **self._fields}
        if kind == _COMPLETED and self.response and self.response.get("status") == _INCOMPLETE:
            # vLLM says in the response alone that an answer was cut off; OpenAI's clients look at the event.
            self.response["output"] = _cut_off(self.response.get("output"))
            return {**event, "type": _CUT_OFF, "response": self.response}
        if self._fields and isinstance(event.get("response"), dict):
            return {**event, "response": {**event["response"], **self._fields}}
        return None

    def message(self) -> Mapping[str, Any] | None:
        if self.response is not None:
            return answer_message(objects(self.response.get("output")))
        return answer_message(
            _with_text(item, "".join(self._pieces[index])) for index, item in sorted(self._items.items())
        )

    def usage(self) -> PromptUsage | None:
        usage = self._usage()
        return prompt_usage(usage.get("input_tokens"), cached_of(usage, _DETAILS))

    def total_tokens(self) -> int | None:
        return token_count(self._usage().get("total_tokens"))

    @property
    def odd(self) -> bool:
        usage = self._usage()
        figures = usage.get("input_tokens"), usage.get("total_tokens"), cached_of(usage, _DETAILS)
        return any(map(is_odd, figures))

    def _usage(self) -> dict[str, Any]:
        usage = None if self.response is None else self.response.get("usage")
        return usage if isinstance(usage, dict) else {}


class ResponseIds(EngineIds):
    """The answer to a request for a response."""

    def __init__(self, reader: ResponsesReader, **options: Any) -> None:
        super().__init__(reader, **options)
        self._responses = reader

    def response(self) -> Mapping[str, Any] | None:
        """The response object, once it is complete."""
        return self._responses.response


def _cut_off(output: Any) -> Any:
    """The items, of which the last was cut off."""
    if not isinstance(output, list) or not output or not isinstance(output[-1], dict):
        return output
    return [*output[:-1], {**output[-1], "status": _INCOMPLETE}]


def _with_text(item: dict[str, Any], text: str) -> dict[str, Any]:
    """An item that was not done with the pieces that arrived."""
    if not text:
        return item
    kind = item.get("type")
    if kind in {"function_call", "custom_tool_call"}:
        return {**item, "arguments" if kind == "function_call" else "input": text}
    return {**item, "content": [{"type": "output_text", "text": text}]}
