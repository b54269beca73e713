"""The pieces of a tool result, each of which is shown whole or cut on its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NoReturn, Protocol

from cwm.domain.json_text import compact_json
from cwm.domain.preview import Omission, Unit
from cwm.domain.tool_policy import ToolPolicy
from cwm.ports.token_counter import TokenCounter
from cwm.services.results.preview.fitting import Candidate, Fitted, fit
from cwm.services.results.preview.json_preview import Schema, fit_json
from cwm.services.results.preview.omitted import Omitted
from cwm.services.results.preview.text.texts import Text
from cwm.services.results.preview.validity import Validity

_NO_JSON: Final = object()
_LONGEST_NAME: Final = 120
_DENSEST: Final = 12
"""The most characters a token: a text that is longer than that allows does not fit and is not counted."""
_MOST_IMAGE_TOKENS: Final = 1_600
"""Tokens of a large picture in models that see pictures."""
_DATA_CHARACTERS: Final = 3
_LINK: Final = {
    "required": ["type", "uri", "name"],
    "properties": {"type": {"const": "resource_link"}, "uri": {"format": "uri"}},
}

Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shown:
    """The delivered form of a piece: an item of ``content``, or the structured content."""

    value: Any
    tokens: int
    omissions: tuple[Omission, ...] = ()


class Piece(Protocol):
    @property
    def size(self) -> int:
        """The approximate size in characters."""

    def whole(self, most: int, counter: TokenCounter) -> Shown | None:
        """The unchanged piece if it has at most ``most`` tokens, else None."""

    def cut(self, budget: int, counter: TokenCounter) -> Shown:
        """The piece cut to at most ``budget`` tokens, or its smallest form."""


def _whole(value: Any, text: str, most: int, counter: TokenCounter) -> Shown | None:
    if len(text) > most * _DENSEST:
        return None
    tokens = counter.count(text)
    return Shown(value, tokens) if tokens <= most else None


def parsed(text: str) -> Any:
    """The object or list that a text contains as JSON; a text with NaN or the like is not JSON."""
    if not text.lstrip().startswith(("{", "[")):
        return _NO_JSON
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _NO_JSON


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def is_json(value: Any) -> bool:
    return value is not _NO_JSON


@dataclass(frozen=True)
class TextPiece:
    """A text, or the text of an embedded resource. If it is JSON, the cut text is JSON, too."""

    item: Item
    text: str
    policy: ToolPolicy

    @property
    def size(self) -> int:
        return len(self.text)

    def whole(self, most: int, counter: TokenCounter) -> Shown | None:
        return _whole(self.item, self.text, most, counter)

    def cut(self, budget: int, counter: TokenCounter) -> Shown:
        text = fit_text(self.text, self.policy, budget, counter)
        return Shown(with_text(self.item, text.text), text.tokens, text.omitted.omissions())


def fit_text(text: str, policy: ToolPolicy, budget: int, counter: TokenCounter) -> Fitted:
    value = parsed(text)
    if is_json(value):
        return fit_json(value, None, policy, budget, counter)
    looked_at = Text(text, policy.preview, policy.keywords)

    def within(room: int) -> Candidate:
        omitted = Omitted()
        short = looked_at.shorten(room)
        if short is None:
            return Candidate(text, text, omitted)
        omitted.add((), short.unit, short.shown, short.total)
        return Candidate(short.text, short.text, omitted)

    return fit(within, budget, counter)


def with_text(item: Item, text: str) -> Item:
    if item.get("type") == "resource":
        return {**item, "resource": {**item["resource"], "text": text}}
    return {**item, "text": text}


def data_tokens(kind: str | None, data: str) -> int:
    """The tokens of base64 in an item of this type. All but pictures counts as text, as a simple client would send it."""
    tokens = len(data) * 3 // 4
    return min(tokens, _MOST_IMAGE_TOKENS) if kind == "image" else tokens


@dataclass(frozen=True)
class DataPiece:
    """An image, a sound or other bytes, in base64 in ``text``: shown whole or not at all."""

    item: Item
    text: str
    media_type: str
    uri: str = ""

    @property
    def size(self) -> int:
        return self._tokens * _DATA_CHARACTERS

    def whole(self, most: int, _counter: TokenCounter) -> Shown | None:
        return Shown(self.item, self._tokens) if self._tokens <= most else None

    @property
    def _tokens(self) -> int:
        return data_tokens(self.item.get("type"), self.text)

    def cut(self, _budget: int, counter: TokenCounter) -> Shown:
        size = len(self.text) * 3 // 4 - self.text[-2:].count("=")
        where = f" of {self.uri[:_LONGEST_NAME]}" if self.uri else ""
        media_type = self.media_type[:_LONGEST_NAME]
        note = f"[{media_type}, {size:,} bytes{where}: not shown]"
        omission = Omission("", Unit.BYTES, 0, size, names=(media_type,))
        return Shown({"type": "text", "text": note}, counter.count(note), (omission,))


@dataclass(frozen=True)
class _JsonPiece:
    """A piece that is counted as the JSON of its value."""

    value: Any

    @cached_property
    def text(self) -> str:
        return compact_json(self.value)

    @property
    def size(self) -> int:
        return len(self.text)

    def whole(self, most: int, counter: TokenCounter) -> Shown | None:
        return _whole(self.value, self.text, most, counter)


@dataclass(frozen=True)
class OtherPiece(_JsonPiece):
    """A resource link, whose name and URI always stay, or an item of an unknown type."""

    def cut(self, budget: int, counter: TokenCounter) -> Shown:
        if self.value.get("type") == "resource_link":
            link = fit_json(dict(self.value), _LINK, ToolPolicy(), budget, counter)
            return Shown(link.value, link.tokens, link.omitted.omissions())
        note = f"[{str(self.value.get('type'))[:_LONGEST_NAME]}: not shown]"
        omission = Omission("", Unit.CHARACTERS, 0, len(self.text))
        return Shown({"type": "text", "text": note}, counter.count(note), (omission,))


@dataclass(frozen=True)
class StructuredPiece(_JsonPiece):
    """The structured content. ``inner``: its only key, if the value under it is repeated as the text of an item."""

    schema: Schema | None
    policy: ToolPolicy
    inner: str | None = None

    def cut(self, budget: int, counter: TokenCounter) -> Shown:
        preview = self._by_inner(budget, counter)
        preview = preview or fit_json(self.value, self.schema, self.policy, budget, counter)
        return Shown(preview.value, preview.tokens, preview.omitted.omissions())

    def _by_inner(self, budget: int, counter: TokenCounter) -> Fitted | None:
        """Cut the text under ``inner`` as JSON; None if it is not JSON, or the result is not valid by the schema."""
        inner = _NO_JSON if self.inner is None else parsed(self.value[self.inner])
        if not is_json(inner):
            return None
        text = fit_json(
            inner, None, self.policy, budget, counter, lambda value: compact_json(self._around(value))
        )
        value = self._around(text.value)
        if self.schema is not None and Validity(self.schema).errors(value):
            return None
        return replace(text, value=value)

    def _around(self, inner: Any) -> dict[str | None, str]:
        return {self.inner: compact_json(inner)}
