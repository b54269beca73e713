"""The token ids of an answer, found in its bytes by their field names, and taken out of them.

Inside a JSON string every quote is escaped, so text cannot match the pattern of a name, a colon and an array of numbers. vLLM writes
``null`` when ids were not requested; with ``null`` in place of the ids, the bytes equal those of an unrecorded response.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, Final

from pydantic_core import from_json

from cwm.adapters.vllm.turns.body import objects
from cwm.domain.figures import is_odd, token_count
from cwm.domain.prefix import TokenIds, are_ids
from cwm.ports.turn_wire import PromptUsage

# Begins with letters: searching for a literal is several times as fast as trying a pattern at every byte.
_IDS: Final = re.compile(
    rb'token_ids(?:(?<=[^\\]"token_ids)|(?<=[^\\]"prompt_token_ids))("\s*:\s*)\[[\d\s,]*\]'
)
_GIVEN_IDS: Final = re.compile(rb'token_ids"\s*:\s*(\[[\d\s,]*\]|null)')
_NAME_BEGINS: Final = re.compile(rb'[^\\]"(prompt_)?\Z')
_USAGE: Final = re.compile(rb'(?<=[^\\]")usage"\s*:\s*(\{)')
# vLLM writes the usage behind the choices.
TAIL_BYTES: Final = 16 * 1024
_NULL: Final = rb"token_ids\1null"
_DECODER: Final = json.JSONDecoder()


def without_ids(content: bytes) -> bytes:
    return _IDS.sub(_NULL, content)


class Ids:
    """Collects the token ids of a turn from the objects of a response; of several choices, those of choice 0."""

    __slots__ = ("_complete", "_new", "_others", "_prompt", "_total", "odd", "usage")

    def __init__(self) -> None:
        self._prompt: list[int] | None = None
        self._new: list[int] = []
        self._others = 0
        self._complete = True
        self._total: int | None = None
        self.usage: PromptUsage | None = None
        self.odd = False

    def take(self, answer: dict[str, Any]) -> None:
        self.take_prompt(answer.get("prompt_token_ids"))
        for choice in choices_of(answer):
            self._take_choice(choice)
        usage = answer.get("usage")
        if isinstance(usage, dict):
            self._take_usage(usage)

    def take_large(self, content: bytes) -> None:
        """Take the ids and the usage out of a large body without parsing its text and log-probabilities.

        vLLM lists the choices in the order of their indexes.
        """
        choices = 0
        for match in _GIVEN_IDS.finditer(content):
            name = _NAME_BEGINS.search(content[max(0, match.start() - 9) : match.start()])
            if name is None:
                continue
            ids = _ids_in(match[1])
            if name[1]:
                self.take_prompt(ids)
            else:
                self._take_choice({"index": choices, "token_ids": ids})
                choices += 1
        self.take_usage(content)

    def take_usage(self, content: bytes) -> None:
        """Take the usage out of the end of a body."""
        tail = content[-TAIL_BYTES:]
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
        ids = (*self._prompt, *self._new)
        return ids if are_ids(ids) else None

    def _take_usage(self, usage: dict[str, Any]) -> None:
        prompt, total, cached = usage.get("prompt_tokens"), usage.get("total_tokens"), cached_of(usage)
        self.odd = self.odd or any(map(is_odd, (prompt, total, cached)))
        self.usage = prompt_usage(prompt, cached) or self.usage
        self._total = token_count(total) or self._total

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


def choices_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices in an answer, or in a part of one."""
    return objects(answer.get("choices"))


def cached_of(usage: dict[str, Any], name: str = "prompt_tokens_details") -> Any:
    """What a usage says of the prompt's tokens that were cached, whatever that is; None if nothing."""
    details = usage.get(name)
    return details.get("cached_tokens") if isinstance(details, dict) else None


def prompt_usage(prompt: Any, cached: Any) -> PromptUsage | None:
    """The prompt's usage; None if the engine does not report how much of the prompt was cached, or reports what cannot be."""
    prompt_tokens, cached_tokens = token_count(prompt), token_count(cached)
    if prompt_tokens is None or cached_tokens is None or cached_tokens > prompt_tokens:
        return None
    return PromptUsage(prompt_tokens, cached_tokens)


def _ids_in(array: bytes) -> Any:
    try:
        return from_json(array)
    except ValueError:
        return None
