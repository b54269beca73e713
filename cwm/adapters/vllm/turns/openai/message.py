"""What an answer says, joined from its parts."""

from __future__ import annotations

from typing import Any

from cwm.adapters.vllm.turns.body import objects
from cwm.adapters.vllm.turns.openai.tokens import choices_of


class Message:
    """Joins what choice 0 says, from the deltas of a stream or from the message of a body."""

    __slots__ = ("_calls", "_content", "_reasoning", "_role")

    def __init__(self) -> None:
        self._role = ""
        self._content: list[str] = []
        self._reasoning: list[str] = []
        # By index: ids, names and arguments. A name or id that is repeated counts once.
        self._calls: dict[int, tuple[list[str], list[str], list[str]]] = {}

    def take(self, answer: dict[str, Any]) -> None:
        for choice in choices_of(answer):
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
        for position, call in enumerate(objects(calls)):
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
