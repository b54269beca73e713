"""How the console writes numbers, sizes and times."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400

COMPONENTS: Final[Mapping[str, str]] = {
    "kv_store": "KV store (LMCache)",
    "vllm": "Model engine (vLLM)",
    "registry": "Registry",
    "coordinator": "LMCache coordinator",
    "shared_store": "Shared store",
}
CAUSES: Final[Mapping[str, str]] = {
    "system_text": "the system text is another one",
    "tools": "the tools are other ones",
    "tool_order": "the tools come in another order",
    "moved": "a message stands in another place",
    "compacted": "the client went on from a summary",
    "edited": "a message has other words",
    "dropped": "messages are left out",
    "inserted": "a message was put in between",
    "rendered": "an answer came back with other words",
    "template": "earlier messages became other tokens than before, by the model's template or in how a text is split",
    "repeated": "it was asked again, from an earlier point",
    "unrelated": "another conversation under the same id",
}
HABITS: Final[Mapping[str, str]] = {
    "billing_block": "the client writes a billing line into each request",
    "date": "the client writes the date into its request",
    "git_status": "the client writes the state of git into its request",
    "moved_reminder": "the client moves its reminders",
    "reordered_tools": "the client reorders its tools",
}
MISSES: Final[Mapping[str, str]] = {
    "evicted": "the engine no longer had the KV of its parent",
    "another_engine": "another engine had the KV of its parent",
}


def number(value: float) -> str:
    return f"{value:,.0f}"


def percent(part: float, whole: float) -> int:
    """The share of ``part``, in whole per cent, rounded down: 100 only if nothing is missing."""
    return int(100 * part / whole) if whole else 0


def took(milliseconds: float) -> str:
    return f"{milliseconds / 1000:,.1f} s" if milliseconds >= 1000 else f"{milliseconds:,.0f} ms"


def lasting(seconds: float) -> str:
    """A duration in its largest unit: '3 h'."""
    for unit, length in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE)):
        if seconds >= length:
            return f"{seconds // length:,.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def period(seconds: int) -> str:
    """What a rate is counted in: 'an hour'."""
    return {1: "a second", _MINUTE: "a minute", _HOUR: "an hour", _DAY: "a day"}.get(
        seconds, lasting(seconds)
    )


def iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def whole_time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def ago(at: datetime, now: datetime) -> str:
    """How long ago, within a day; else the date."""
    seconds = (now - at).total_seconds()
    if seconds >= _DAY:
        return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    if seconds < 0:
        return f"in {lasting(-seconds)}" if seconds > -_DAY else f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    return "just now" if seconds < 5 else f"{lasting(seconds)} ago"


def component(name: str) -> str:
    kind, _, of = name.partition(":")
    return f"{kind.capitalize()} {of}" if of else COMPONENTS.get(name, name)
