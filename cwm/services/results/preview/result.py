"""The preview of a tool result that is over its budget.

Pure functions: the same result, policy and counter give the same bytes. The caller stores the whole result first and
adds to the preview where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cwm.domain.preview import Account, Omission, Preview, Unit
from cwm.domain.tool_policy import PreviewKind, ToolPolicy
from cwm.ports.token_counter import TokenCounter
from cwm.services.results.preview.json_preview import Schema
from cwm.services.results.preview.pieces import (
    DataPiece,
    Item,
    OtherPiece,
    Piece,
    Shown,
    StructuredPiece,
    TextPiece,
    with_text,
)
from cwm.services.results.preview.twins import Twins, twins_of

_LEAST_SHARE: Final = 160
"""The fewest tokens a piece is cut to. If shares would be smaller, the last pieces are shown only if they fit whole."""
_STRUCTURED: Final = -1


def preview_result(
    content: Sequence[Item],
    structured: Any,
    policy: ToolPolicy,
    counter: TokenCounter,
    schema: Schema | None = None,
) -> Preview:
    """A preview of at most ``policy.preview_tokens``, unless its account says that it is over budget.

    ``content``: the items of an MCP result as JSON. ``structured``: its ``structuredContent`` or None. ``schema``: the
    tool's output schema; the preview's structured content is valid by it if the result's is. A text that repeats the
    structured content repeats its preview.
    """
    twins = twins_of(content, structured)
    if twins.each is not None:
        return _one_by_one(content, structured, policy, counter, schema, twins)
    pieces = _pieces(content, structured, policy, schema, twins)
    previews = _shared_out(pieces, policy, counter)
    new = previews[_STRUCTURED].value if _STRUCTURED in previews else None
    items = []
    for place, item in enumerate(content):
        if place in twins.keys:
            items.append(with_text(item, twins.text(place, new)))
        elif place in previews:
            items.append(previews[place].value)
    return Preview(tuple(items), new, _account(previews, len(pieces), policy.preview_tokens))


def _one_by_one(
    content: Sequence[Item],
    structured: Any,
    policy: ToolPolicy,
    counter: TokenCounter,
    schema: Schema | None,
    twins: Twins,
) -> Preview:
    """The preview of a list that occurs twice, as structured content and as a text for each item: half the budget each."""
    half = policy.preview_tokens // 2
    piece = StructuredPiece(structured, schema, policy)
    preview = piece.whole(half, counter) or piece.cut(half, counter)
    texts = tuple(twins.texts(content, preview.value, last=policy.preview is PreviewKind.TAIL))
    tokens = counter.count("\n".join(text["text"] for text in texts))
    both = {_STRUCTURED: replace(preview, tokens=preview.tokens + tokens)}
    return Preview(texts, preview.value, _account(both, 1, policy.preview_tokens))


def _pieces(
    content: Sequence[Item],
    structured: Any,
    policy: ToolPolicy,
    schema: Schema | None,
    twins: Twins,
) -> dict[int, Piece]:
    """The pieces by their place in the content; the structured content comes first."""
    pieces: dict[int, Piece] = {}
    if structured is not None:
        inner = twins.wrapped_text
        quoted = inner if inner is not None and isinstance(structured[inner], str) else None
        pieces[_STRUCTURED] = StructuredPiece(structured, schema, policy, quoted)
    for place, item in enumerate(content):
        if place not in twins.keys:
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
    """Small pieces whole, the others cut to equal shares of the rest; if too many, the first ones, or the last for a tail."""
    room = policy.preview_tokens
    places = list(pieces)
    if policy.preview is PreviewKind.TAIL:
        places = [place for place in places if place == _STRUCTURED] + [p for p in reversed(places) if p >= 0]
    at_once = max(room // _LEAST_SHARE, 1)
    waiting = sorted(places[:at_once], key=lambda place: pieces[place].size)
    previews: dict[int, Shown] = {}
    for number, place in enumerate(waiting):
        share = max(room // (len(waiting) - number), 0)
        previews[place] = pieces[place].whole(share, counter) or pieces[place].cut(share, counter)
        room -= previews[place].tokens
    for place in places[at_once:]:
        one = pieces[place].whole(room, counter)
        if one is None:
            break
        previews[place] = one
        room -= one.tokens
    return dict(sorted(previews.items()))


def _account(previews: Mapping[int, Shown], total: int, budget: int) -> Account:
    omissions = [Omission("", Unit.PARTS, len(previews), total)] if len(previews) < total else []
    cut = [place for place, one in previews.items() if place >= 0 and one.omissions]
    for place, one in previews.items():
        within = "" if total == 1 or place == _STRUCTURED else f"content[{place if len(cut) == 1 else '*'}]"
        omissions += (replace(omission, path=_joined(within, omission.path)) for omission in one.omissions)
    tokens = sum(one.tokens for one in previews.values())
    return Account(tuple(_summed(omissions)), tokens, over_budget=tokens > budget)


def _joined(outer: str, inner: str) -> str:
    return f"{outer}.{inner}" if outer and inner and not inner.startswith("[") else outer + inner


def _summed(omissions: Iterable[Omission]) -> Iterator[Omission]:
    """Add up the omissions of each path and unit."""
    alike: dict[tuple[str, Unit], Omission] = {}
    for omission in omissions:
        key = (omission.path, omission.unit)
        alike[key] = alike[key].plus(omission) if key in alike else omission
    yield from alike.values()
