"""What accompanies a preview: a note for the model on how to read on, and the same as data for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from cwm.domain.errors import CwmError
from cwm.domain.preview import Account
from cwm.domain.results import RESULTS_URI
from cwm.services.results.delivery import Kept, Shown
from cwm.transport.mcp.contract.render import moment

META_KEY: Final = "dev.cwm/result"

_MOST_OMISSIONS: Final = 32


def note(shown: Shown, tokens: int, *, by_reference: bool) -> dict[str, Any]:
    """A text item that says how much is shown, and how to read on or that the rest is lost."""
    if shown.kept is None:
        assert shown.refusal is not None
        told = _lost(shown.refusal, tokens)
    else:
        told = _how_to_read_on(shown.kept, tokens, by_reference=by_reference)
    return {"type": "text", "text": f"[CWM preview] {shown.preview.account.line} {told}"}


def link(kept: Kept) -> dict[str, Any]:
    """A resource link under which clients read the whole result."""
    return {
        "type": "resource_link",
        "uri": f"{RESULTS_URI}/{kept.handle}",
        "name": kept.handle,
        "mimeType": kept.media_type,
        "size": kept.size,
    }


def meta(shown: Shown, tokens: int, delivered: int) -> dict[str, Any]:
    told: dict[str, Any] = {
        "tokens": tokens,
        "delivered_tokens": delivered,
        "account": _told(shown.preview.account),
    }
    if shown.kept is not None:
        told["handle"] = shown.kept.handle
        told["cursor"] = shown.kept.cursor
        told["expires_at"] = moment(shown.kept.expires_at)
    if shown.refusal is not None:
        told["not_kept"] = shown.refusal.as_dict()
    return told


def _told(account: Account) -> dict[str, Any]:
    return {
        "line": account.line,
        "over_budget": account.over_budget,
        "omissions": [asdict(each) for each in account.omissions[:_MOST_OMISSIONS]],
    }


def _how_to_read_on(kept: Kept, tokens: int, *, by_reference: bool) -> str:
    parts = f" in {kept.parts} parts" if kept.parts > 1 else ""
    until = moment(kept.expires_at.replace(microsecond=0))
    told = (
        f"The whole result ({tokens:,} tokens{parts}) is stored as {kept.handle} until {until}. "
        f'Read on: result_read {{"cursor": "{kept.cursor}"}}. Find something in it: result_query with that handle '
        "and jmespath, json_pointer, regex, search, head, tail or count."
    )
    if by_reference:
        told += (
            f' Tools that take references take it unread: {{"$cwm": "{kept.handle}"}} is its text, with # and a JSON '
            "pointer behind the handle a value in it."
        )
    return told


def _lost(refusal: CwmError, tokens: int) -> str:
    return (
        f"WARNING: the whole result ({tokens:,} tokens) could not be stored ({refusal.code}: {refusal.message}) "
        "What is not shown here is lost; ask the tool for less at a time."
    )
