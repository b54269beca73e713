"""The preview of a tool result that is over its budget.

Pure: the same result, policy and counter give the same bytes. Whoever calls this stores the whole result
first, and says in the preview's company where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cwm.domain.preview import Account, Omission, Preview, Unit
from cwm.domain.tool_policy import PreviewKind, ToolPolicy
from cwm.ports.token_counter import TokenCounter
from cwm.services.preview.fitting import dumped
from cwm.services.preview.json_preview import Schema
from cwm.services.preview.pieces import (
    DataPiece,
    Item,
    OtherPiece,
    Piece,
    Shown,
    StructuredPiece,
    TextPiece,
    is_json,
    parsed,
    with_text,
)

_LEAST_SHARE: Final = 160
"""Tokens: pieces that would get fewer each are not cut; the last are not shown unless they are small."""
_STRUCTURED: Final = -1


def preview_result(
    content: Sequence[Item],
    structured: Any,
    policy: ToolPolicy,
    counter: TokenCounter,
    schema: Schema | None = None,
) -> Preview:
    """What takes at most ``policy.preview_tokens``, unless the account says that it is over budget.

    ``content`` are the items of an MCP result as JSON, ``structured`` its ``structuredContent`` or None,
    ``schema`` the tool's output schema, by which the preview's structured content is as valid as the
    result's. A text that says the same as the structured content is the same as its preview too.
    """
    twins = _twins(content, structured)
    pieces = _pieces(content, structured, policy, schema, twins)
    shown = _shared_out(pieces, policy, counter)
    account = _account(shown, len(pieces), policy)
    new_structured = shown[_STRUCTURED].value if _STRUCTURED in shown else None
    items = []
    for place, item in enumerate(content):
        if place in twins:
            items.append(with_text(item, _twin_text(new_structured, twins[place])))
        elif place in shown:
            items.append(shown[place].value)
    return Preview(tuple(items), new_structured, account)


def _twins(content: Sequence[Item], structured: Any) -> dict[int, str | None]:
    """Text items that say what the structured content says, or what is under its only key, which is named."""
    if structured is None:
        return {}
    only = next(iter(structured)) if isinstance(structured, dict) and len(structured) == 1 else None
    twins: dict[int, str | None] = {}
    for place, item in enumerate(content):
        if item.get("type") != "text":
            continue
        if only is not None and item["text"] == structured[only]:
            twins[place] = only
        elif is_json(value := parsed(item["text"])):
            if _same(value, structured):
                twins[place] = None
            elif only is not None and _same(value, structured[only]):
                twins[place] = only
    return twins


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except RecursionError:
        return False


def _twin_text(structured: Any, key: str | None) -> str:
    value = structured if key is None else structured[key]
    return value if isinstance(value, str) else dumped(value)


def _pieces(
    content: Sequence[Item],
    structured: Any,
    policy: ToolPolicy,
    schema: Schema | None,
    twins: Mapping[int, str | None],
) -> dict[int, Piece]:
    """By their place in the content; the structured content comes before all."""
    pieces: dict[int, Piece] = {}
    if structured is not None:
        inner = next((key for key in twins.values() if key is not None), None)
        quoted = inner if inner is not None and isinstance(structured[inner], str) else None
        pieces[_STRUCTURED] = StructuredPiece(structured, schema, policy, quoted)
    for place, item in enumerate(content):
        if place not in twins:
            pieces[place] = _piece(item, policy)
    return pieces


def _piece(item: Item, policy: ToolPolicy) -> Piece:
    match item:
        case {"type": "text", "text": str(text)} | {"type": "resource", "resource": {"text": str(text)}}:
            return TextPiece(item, text, policy)
        case {"type": "resource", "resource": {"blob": str(data)} as resource}:
            media_type = resource.get("mimeType") or "application/octet-stream"
            return DataPiece(item, data, str(media_type), str(resource.get("uri", "")))
        case {"type": "image" | "audio" as kind, "data": str(data)}:
            return DataPiece(item, data, str(item.get("mimeType") or kind))
        case _:
            return OtherPiece(item)


def _shared_out(pieces: Mapping[int, Piece], policy: ToolPolicy, counter: TokenCounter) -> dict[int, Shown]:
    """The small ones whole, the others in equal shares of the rest; of too many, the first, or the last of a tail."""
    room = policy.preview_tokens
    places = list(pieces)
    if policy.preview is PreviewKind.TAIL:
        places = [place for place in places if place == _STRUCTURED] + [p for p in reversed(places) if p >= 0]
    at_once = max(room // _LEAST_SHARE, 1)
    waiting = sorted(places[:at_once], key=lambda place: pieces[place].size)
    shown: dict[int, Shown] = {}
    for number, place in enumerate(waiting):
        share = max(room // (len(waiting) - number), 0)
        shown[place] = pieces[place].whole(share, counter) or pieces[place].cut(share, counter)
        room -= shown[place].tokens
    for place in places[at_once:]:
        one = pieces[place].whole(room, counter)
        if one is None:
            break
        shown[place] = one
        room -= one.tokens
    return dict(sorted(shown.items()))


def _account(shown: Mapping[int, Shown], total: int, policy: ToolPolicy) -> Account:
    omissions = [Omission("", Unit.PARTS, len(shown), total)] if len(shown) < total else []
    cut = [place for place, one in shown.items() if place >= 0 and one.omissions]
    for place, one in shown.items():
        within = "" if total == 1 or place == _STRUCTURED else f"content[{place if len(cut) == 1 else '*'}]"
        omissions += (replace(omission, path=_joined(within, omission.path)) for omission in one.omissions)
    tokens = sum(one.tokens for one in shown.values())
    return Account(tuple(_summed(omissions)), tokens, over_budget=tokens > policy.preview_tokens)


def _joined(outer: str, inner: str) -> str:
    return f"{outer}.{inner}" if outer and inner and not inner.startswith("[") else outer + inner


def _summed(omissions: Iterable[Omission]) -> Iterator[Omission]:
    """One for each path and unit."""
    alike: dict[tuple[str, Unit], Omission] = {}
    for omission in omissions:
        key = (omission.path, omission.unit)
        alike[key] = alike[key].plus(omission) if key in alike else omission
    yield from alike.values()
