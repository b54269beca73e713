"""A tool's answer: the tokens it takes in a model's context, and the parts in which it is stored."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from cwm.domain.json_text import compact_json, is_long, json_text
from cwm.domain.results import ABOUT_TYPE, Part, PartKind
from cwm.ports.token_counter import TokenCounter
from cwm.services.results.preview.pieces import data_tokens
from cwm.services.results.preview.twins import Twins, twins_of
from cwm.threads import in_thread

JSON_TYPE: Final = "application/json"

_PLAIN: Final = "text/plain"
_MOST_PARTS: Final = 64


@dataclass(frozen=True)
class ToolAnswer:
    """An MCP result: ``content`` its items as sent, ``structured`` its structuredContent, ``meta`` its _meta."""

    content: Sequence[Mapping[str, Any]]
    structured: Any = None
    is_error: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def twins(self) -> Twins:
        """The texts that repeat the structured content."""
        return twins_of(self.content, self.structured)

    @property
    def says_it_twice(self) -> bool:
        """Whether the texts contain all of the structured content, so that clients show only one of the two."""
        return bool(self.twins.keys) or self.twins.each is not None


@dataclass(frozen=True, slots=True)
class Counted:
    """The texts that reach a model with the tokens of each, and the tokens of pictures and other media."""

    texts: tuple[tuple[str, int], ...]
    media: int

    @property
    def tokens(self) -> int:
        return self.media + sum(tokens for _, tokens in self.texts)


async def count(answer: ToolAnswer, counter: TokenCounter) -> Counted:
    """Count the tokens that the answer takes in a model's context."""
    if is_long([answer.content, answer.structured]):
        return await in_thread(_counted, answer, counter)
    return _counted(answer, counter)


def item_of(part: Part) -> Mapping[str, Any]:
    """A part as an MCP item that takes the same number of tokens."""
    if part.kind is not PartKind.BINARY:
        return {"type": "text", "text": part.body.decode()}
    kind = "image" if part.media_type.startswith("image/") else "audio"
    return {"type": kind, "data": base64.b64encode(part.body).decode(), "mimeType": part.media_type}


def parts_of(answer: ToolAnswer) -> list[Part]:
    """The whole answer, byte for byte: one part for each item, then the structured content if no text repeats it.

    A text that is a JSON object or array is a JSON part. A list that occurs twice, in the structured content and in a
    text for each of its items, is one JSON part; so are more than 64 items. The rest (the URI of a resource,
    annotations, ``_meta``) is a last part of ``ABOUT_TYPE``: the items without their bodies, and ``_meta``.
    """
    if answer.twins.each is not None:
        json_parts = [_json_part(answer.structured)]
        if not _is_spelled_alike(answer):
            json_parts.append(_json_part(list(answer.content)))
        return [*json_parts, *_about(answer)]
    if len(answer.content) > _MOST_PARTS:
        whole: dict[str, Any] = {"content": list(answer.content)}
        if answer.structured is not None:
            whole["structuredContent"] = answer.structured
        return [_json_part(whole), *_about(answer)]
    parts = [_part(item) for item in answer.content]
    if answer.structured is not None and not answer.says_it_twice:
        parts.append(_json_part(answer.structured))
    shells = [_shell(item) for item in answer.content]
    return [
        *parts,
        *_about(answer, shells if any(shell.keys() - {"type", "mimeType"} for shell in shells) else ()),
    ]


def _about(answer: ToolAnswer, shells: Sequence[Mapping[str, Any]] = ()) -> Iterator[Part]:
    about: dict[str, Any] = {"content": shells} if shells else {}
    if answer.meta:
        about["_meta"] = answer.meta
    if about:
        yield replace(_json_part(about), media_type=ABOUT_TYPE)


def _shell(item: Mapping[str, Any]) -> dict[str, Any]:
    """The item without the body that its part contains."""
    match item:
        case {"type": "resource", "resource": Mapping() as resource}:
            return {**item, "resource": _without(resource, "text", "blob")}
        case {"type": "text" | "image" | "audio"}:
            return _without(item, "text", "data")
        case _:
            return {"type": item.get("type")}


def _without(item: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in names}


def _is_spelled_alike(answer: ToolAnswer) -> bool:
    """Whether every item has only a text, and that text equals our serialization of its list item."""
    values = answer.structured[answer.twins.each]
    return all(
        item.keys() == {"type", "text"}
        and item["text"] == (value if isinstance(value, str) else compact_json(value))
        for item, value in zip(answer.content, values, strict=True)
    )


def _texts(answer: ToolAnswer) -> Iterator[str]:
    for item in answer.content:
        kind = item.get("type")
        if kind == "text":
            yield str(item["text"])
        elif kind == "resource" and "text" in item["resource"]:
            yield str(item["resource"]["text"])
        elif kind not in {"image", "audio", "resource"}:
            yield json_text(item)
    if answer.structured is not None and not answer.says_it_twice:
        yield json_text(answer.structured)


def _counted(answer: ToolAnswer, counter: TokenCounter) -> Counted:
    texts = tuple((text, counter.count(text)) for text in _texts(answer))
    return Counted(texts, sum(map(_media_tokens, answer.content)))


def _media_tokens(item: Mapping[str, Any]) -> int:
    match item.get("type"):
        case "image" | "audio" as kind:
            return data_tokens(kind, str(item["data"]))
        case "resource" as kind if "blob" in item["resource"]:
            return data_tokens(kind, str(item["resource"]["blob"]))
        case _:
            return 0


def _part(item: Mapping[str, Any]) -> Part:
    match item.get("type"):
        case "text":
            return _text_part(str(item["text"]), _PLAIN)
        case "image" | "audio":
            return _binary_part(str(item["data"]), str(item["mimeType"]))
        case "resource" if "text" in item["resource"]:
            return _text_part(str(item["resource"]["text"]), str(item["resource"].get("mimeType", _PLAIN)))
        case "resource" if "blob" in item["resource"]:
            media_type = str(item["resource"].get("mimeType", "application/octet-stream"))
            return _binary_part(str(item["resource"]["blob"]), media_type)
        case _:
            return _json_part(dict(item))


def _text_part(text: str, media_type: str) -> Part:
    if text.lstrip()[:1] in {"{", "["}:
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            pass
        else:
            return Part(PartKind.JSON, JSON_TYPE if media_type == _PLAIN else media_type, text.encode())
    return Part(PartKind.TEXT, media_type, text.encode())


def _binary_part(data: str, media_type: str) -> Part:
    """A binary part; base64 that is not canonical stays text, as it could not be restored byte for byte."""
    try:
        body = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return Part(PartKind.TEXT, f"{media_type};base64", data.encode())
    if base64.b64encode(body).decode() != data:
        return Part(PartKind.TEXT, f"{media_type};base64", data.encode())
    return Part(PartKind.BINARY, media_type, body)


def _json_part(value: Any) -> Part:
    return Part(PartKind.JSON, JSON_TYPE, compact_json(value).encode())
