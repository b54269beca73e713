"""The fallback if no preview can be made: the beginnings of the texts, cut by bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cwm.domain.json_text import compact_json
from cwm.domain.preview import Account, Omission, Preview, Unit
from cwm.services.results.preview.pieces import Item


def plain_preview(content: Sequence[Item], structured: Any, most_tokens: int) -> Preview:
    """A preview without structured content and without counting: a text has at most as many tokens as bytes."""
    texts = [str(item["text"]) for item in content if item.get("type") == "text"]
    if not texts and structured is not None:
        texts = [compact_json(structured)]
    bodies = [text.encode(errors="replace") for text in texts]
    items, room = list[Item](), most_tokens
    for body in bodies:
        text = body[:room].decode(errors="ignore")
        if not text:
            break
        items.append({"type": "text", "text": text})
        room -= len(text.encode())
    omissions = [Omission("", Unit.BYTES, most_tokens - room, sum(map(len, bodies)))]
    if len(items) < len(content):
        omissions.append(Omission("", Unit.PARTS, len(items), len(content)))
    return Preview(tuple(items), None, Account(tuple(omissions), most_tokens - room))
