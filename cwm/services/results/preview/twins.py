"""Finds the texts of a result that repeat its structured content, so that both get the same preview."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cwm.domain.json_text import compact_json
from cwm.services.results.preview.pieces import Item, is_json, parsed, with_text


@dataclass(frozen=True, slots=True)
class Twins:
    """The texts that repeat the structured content.

    ``keys``: for the place of each such text, the key if it repeats only the value under the only key, else None.
    ``each``: the key of a list that has exactly one text for each item.
    """

    keys: Mapping[int, str | None] = field(default_factory=dict)
    each: str | None = None

    @property
    def wrapped_text(self) -> str | None:
        """The only key of the structured content, if a text repeats the value under it."""
        return next((key for key in self.keys.values() if key is not None), None)

    def text(self, place: int, structured: Any) -> str:
        """The text at a place, for the preview ``structured``."""
        key = self.keys[place]
        return _text(structured if key is None else structured[key])

    def texts(self, content: Sequence[Item], structured: Any, *, last: bool) -> list[Item]:
        """A text for each item of the preview, made from the first items of the result, or the last."""
        assert self.each is not None
        items = structured.get(self.each, [])
        templates = content[len(content) - len(items) :] if last else content[: len(items)]
        return [with_text(text, _text(item)) for text, item in zip(templates, items, strict=True)]


def twins_of(content: Sequence[Item], structured: Any) -> Twins:
    if structured is None:
        return Twins()
    only = next(iter(structured)) if isinstance(structured, dict) and len(structured) == 1 else None
    repeats: dict[int, str | None] = {}
    for place, item in enumerate(content):
        text = item["text"] if item.get("type") == "text" else None
        if text is not None and _says(text, structured):
            repeats[place] = None
        elif text is not None and only is not None and _says(text, structured[only]):
            repeats[place] = only
    if not repeats and only is not None and _one_by_one(content, structured[only]):
        return Twins(each=only)
    return Twins(repeats)


def _says(text: str, value: Any) -> bool:
    if isinstance(value, str):
        return text == value
    if not isinstance(value, (dict, list)):
        return text == compact_json(value)
    if not text.lstrip().startswith("{" if isinstance(value, dict) else "["):
        return False
    parsed_text = parsed(text)
    try:
        return is_json(parsed_text) and bool(parsed_text == value)
    except RecursionError:
        return False


def _one_by_one(content: Sequence[Item], items: Any) -> bool:
    if not isinstance(items, list) or not items or len(items) != len(content):
        return False
    return all(
        item.get("type") == "text" and _says(item["text"], value)
        for item, value in zip(content, items, strict=True)
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else compact_json(value)
