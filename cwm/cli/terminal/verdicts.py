"""Says what a verdict on restored KV rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cwm.cli.terminal.wording import count

_CONTROL: Final = " and the context computed afresh"


def basis(evidence: Mapping[str, Any]) -> str:
    """What was compared with what, at how many places, how far they were apart and why nothing is certain, in brackets; empty if nothing is known."""
    parts = []
    if evidence["tokens_compared"]:
        control = _CONTROL if evidence["compared_with"] == "canary_and_control" else ""
        parts.append(
            f"{count(evidence['tokens_compared'], 'place')} compared with a canary on {evidence['canary_origin']} KV{control}: "
            f"{evidence['places_differing']} differ, by {evidence['deviation']:.3g} nats at most"
        )
    if evidence["noise"] is not None:
        parts.append(f"noise here is up to {evidence['noise']:.3g}")
    parts += [evidence["reason"]] if evidence.get("reason") else []
    parts += [f"{evidence['verify_ms']:.0f} ms"] if evidence.get("verify_ms") else []
    return f" ({'; '.join(parts)})" if parts else ""
