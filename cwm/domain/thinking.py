"""Whether a model is to think: what clients of other servers say of it, and the switches that a chat template has for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

FIELDS: Final = frozenset({"enable_thinking", "reasoning", "thinking"})
"""Of Alibaba's, OpenRouter's and Anthropic's requests; the last one is sent to chats of GLM, DeepSeek and Kimi, too."""
_SWITCHES: Final = ("enable_thinking", "thinking")
_EFFORT: Final = "reasoning_effort"
_THINKING: Final[Mapping[Any, bool]] = {"enabled": True, "adaptive": True, "disabled": False}
_NONE: Final = "none"


@dataclass(frozen=True, slots=True)
class ThinkingWish:
    """What a request says of thoughts; None where it says nothing."""

    thinks: bool | None = None
    effort: str | None = None

    def options(self, switches: Collection[str]) -> dict[str, Any]:
        """The variables by which a template with these ``switches`` is told; none if it has none."""
        options: dict[str, Any] = {}
        if self.thinks is not None:
            options = {name: self.thinks for name in _SWITCHES if name in switches}
        if self.effort is not None and _EFFORT in switches:
            options[_EFFORT] = self.effort
        return options


def wish_of(fields: Mapping[str, Any]) -> ThinkingWish:
    """The wish in those of ``FIELDS`` that a request has."""
    thinks, effort = _bool(fields.get("enable_thinking")), None
    thinking, reasoning = fields.get("thinking"), fields.get("reasoning")
    if isinstance(thinking, dict):
        kind = thinking.get("type")
        thinks = _THINKING.get(kind, thinks) if isinstance(kind, str) else thinks
    elif isinstance(thinking, bool):
        thinks = thinking
    if isinstance(reasoning, dict):
        level = reasoning.get("effort")
        if isinstance(level, str):
            thinks, effort = level != _NONE, None if level == _NONE else level
        thinks = reasoning["enabled"] if isinstance(reasoning.get("enabled"), bool) else thinks
    return ThinkingWish(thinks, effort)


def switches_of(template: str | None) -> frozenset[str]:
    """The variables for thoughts that a Jinja template reads."""
    names = {*_SWITCHES, _EFFORT}
    if template is None or not any(name in template for name in names):
        return frozenset()
    from jinja2 import Environment, TemplateSyntaxError

    try:
        tokens = [each for each in Environment(autoescape=True).lex(template) if each[1] != "whitespace"]
    except TemplateSyntaxError:
        return frozenset()
    return frozenset(
        text
        for (_, _, before), (_, kind, text) in pairwise(tokens)
        if kind == "name" and before != "." and text in names
    )


def _bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None
