"""What accompanies a preview: a note for the model on how to read on, and the same as data for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from cwm.domain.errors import CwmError
from cwm.domain.results import RESULTS_URI, StoredResult
from cwm.services.results.delivery import Kept, Shown
from cwm.transport.mcp.contract.render.scalars import moment

META_KEY: Final = "dev.cwm/result"

_MOST_OMISSIONS: Final = 32


def note(outcome: Shown, tokens: int, *, by_reference: bool) -> dict[str, Any]:
    """A text item that says how much is shown, and how to read on or that the rest is lost."""
    if outcome.kept is None:
        assert outcome.refusal is not None
        text = _lost(outcome.refusal, tokens)
    else:
        text = _how_to_read_on(outcome.kept, tokens, by_reference=by_reference)
    return {"type": "text", "text": f"[CWM preview] {outcome.preview.account.line} {text}"}


def link(stored: StoredResult) -> dict[str, Any]:
    """A resource link under which clients read the whole result."""
    return {
        "type": "resource_link",
        "uri": f"{RESULTS_URI}/{stored.handle}",
        "name": stored.handle,
        "mimeType": stored.parts[0].media_type,
        "size": stored.size,
    }


def meta(outcome: Shown, tokens: int, delivered: int) -> dict[str, Any]:
    account = outcome.preview.account
    fields: dict[str, Any] = {
        "tokens": tokens,
        "delivered_tokens": delivered,
        "account": {
            "line": account.line,
            "over_budget": account.over_budget,
            "omissions": [asdict(each) for each in account.omissions[:_MOST_OMISSIONS]],
        },
    }
    if outcome.kept is not None:
        fields["handle"] = outcome.kept.result.handle
        fields["cursor"] = outcome.kept.cursor
        fields["expires_at"] = moment(outcome.kept.result.expires_at)
    if outcome.refusal is not None:
        fields["not_kept"] = outcome.refusal.as_dict()
    return fields


def _how_to_read_on(copy: Kept, tokens: int, *, by_reference: bool) -> str:
    stored = copy.result
    parts = f" in {len(stored.parts)} parts" if len(stored.parts) > 1 else ""
    until = moment(stored.expires_at.replace(microsecond=0))
    text = (
        f"The whole result ({tokens:,} tokens{parts}) is stored as {stored.handle} until {until}. "
        f'Read on: result_read {{"cursor": "{copy.cursor}"}}. Find something in it: result_query with that handle '
        "and jmespath, json_pointer, regex, search, head, tail or count."
    )
    if by_reference:
        text += (
            f' Tools that take references accept it unread: {{"$cwm": "{stored.handle}"}} stands for its text, or, with '
            "# and a JSON pointer after the handle, for a value in it."
        )
    return text


def _lost(refusal: CwmError, tokens: int) -> str:
    return (
        f"WARNING: the whole result ({tokens:,} tokens) could not be stored ({refusal.code}: {refusal.published}) "
        "What is not shown here is lost; ask the tool for less at a time."
    )
