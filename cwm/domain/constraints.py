"""Bounds on what an engine compiles to constrain an answer: JSON schemas, patterns, grammars and lists of choices.

An engine compiles these before it generates, for all callers on the same threads. A short one can take minutes:
repetitions multiply through nesting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Never

from cwm.domain.errors import InvalidParameterError

_PATTERNS: Final = frozenset({"pattern", "regex", "whitespace_pattern"})
_GRAMMAR: Final = "grammar"
# Values that may be JSON text.
_EMBEDDED: Final = frozenset({"json", "structural_tag"})
_LENGTHS: Final = frozenset({"minLength", "maxLength"})
_COUNTS: Final = _LENGTHS | {
    f"{end}{what}" for end in ("min", "max") for what in ("Items", "Properties", "Contains")
}
_REPETITION: Final = r"\{(?P<least>\d+)(?:,(?P<most>\d*))?\}"
_GROUPS: Final = r"(?P<group>\()|(?P<end>\))"
# What is never closed reaches to the end, so that no text is searched twice.
_CLASS: Final = r"\[\^?\]?(?:\\.|[^\]\\])*\\?(?:\]|\Z)"
_REGEX_PARTS: Final = re.compile(rf"{_GROUPS}|{_REPETITION}|\\.|{_CLASS}|(?P<text>[^\\\[(){{]+)|.", re.DOTALL)
_GRAMMAR_PARTS: Final = re.compile(
    rf"(?P<blank>(?:#|//)[^\n]*|\s+)|{_GROUPS}|{_REPETITION}|~\s*(?P<times>\d+)(?:\s*\.\.\s*(?P<upto>\d+))?"
    r"|\"(?:\\.|[^\"\\])*\\?(?:\"|\Z)|/(?:\\.|[^/\\\n])+(?:/|\\?(?=\n|\Z))"
    rf"|{_CLASS}|[\w-]+|.",
    re.DOTALL,
)
_REASONS: Final = {
    "bytes": "too long",
    "depth": "nested too deeply",
    "properties": "too many properties",
    "patterns": "too many patterns and strings of limited length",
    "expansion": "repetitions in its patterns multiply too far",
    "count": "nested counts such as maxItems multiply too far",
}
_MOST_DIGITS: Final = 9
_MOST: Final = 10**12


@dataclass(frozen=True, slots=True)
class SchemaLimits:
    """``expansion``: characters and groups of all patterns once their repetitions are written out.

    ``count``: product of nested minimum and maximum counts (``maxItems``, ``maxLength``, ...).
    ``patterns``: patterns, and strings of limited length, each of which is an automaton of its own.
    """

    bytes: int = 128 * 1024
    depth: int = 32
    properties: int = 1_000
    patterns: int = 50
    expansion: int = 2_000
    count: int = 100_000_000

    def require(self, field: str, *values: Any) -> None:
        """CWM-1003 if ``values``, which are compiled together, exceed a limit; ``field`` holds them."""
        measure = _Measure(self, field)
        for value in values:
            measure.value(value, 1, 1)

    def require_tools(self, tools: Any, constrains: Callable[[Any], bool]) -> None:
        """The same for the tool definitions that ``constrains`` picks: one of them is what an answer has to call. Of the others nothing is compiled."""
        each: list[Any] = tools if isinstance(tools, list) else [tools]
        self.require("tools", *filter(constrains, each))


@dataclass(slots=True)
class _Measure:
    limits: SchemaLimits
    field: str
    bytes: int = 0
    properties: int = 0
    patterns: int = 0
    expansion: int = 0

    def value(self, value: Any, depth: int, count: int) -> None:
        if isinstance(value, dict):
            self._require("depth", depth)
            self._object(value, depth, count)
        elif isinstance(value, list):
            self._require("depth", depth)
            for inner in value:
                self.value(inner, depth + 1, count)
        else:
            self._bytes(value if isinstance(value, str) else "null")

    def _object(self, value: dict[str, Any], depth: int, count: int) -> None:
        count *= _most_counted(value)
        self._require("count", count)
        if isinstance(properties := value.get("properties"), dict):
            self.properties += len(properties)
            self._require("properties", self.properties)
        if not _LENGTHS.isdisjoint(value):
            self._pattern(0)
        for name, inner in value.items():
            self._bytes(name)
            if name in _EMBEDDED and isinstance(inner, str):
                self._embedded(inner, depth, count)
                continue
            self.value(inner, depth + 1, count)
            if name == "patternProperties" and isinstance(inner, dict):
                self._texts(inner)
            elif name in _PATTERNS and isinstance(inner, str):
                self._texts([inner])
            elif name == _GRAMMAR and isinstance(inner, str):
                self._pattern(expansion(inner, grammar=True))

    def _embedded(self, text: str, depth: int, count: int) -> None:
        self._bytes(text)
        try:
            inner = json.loads(text)
        except RecursionError:
            self._refuse("depth")
        except ValueError:
            return
        self.value(inner, depth + 1, count)

    def _texts(self, patterns: Iterable[str]) -> None:
        for pattern in patterns:
            self._pattern(expansion(pattern))

    def _bytes(self, text: str) -> None:
        self.bytes += len(text.encode("utf-8", "surrogatepass")) + 3
        self._require("bytes", self.bytes)

    def _pattern(self, size: int) -> None:
        self.patterns += 1
        self._require("patterns", self.patterns)
        self.expansion += size
        self._require("expansion", self.expansion)

    def _require(self, what: str, reached: int) -> None:
        if reached > getattr(self.limits, what):
            self._refuse(what)

    def _refuse(self, what: str) -> Never:
        limit, setting = getattr(self.limits, what), f"CWM_SCHEMA_{what.upper()}"
        raise InvalidParameterError(
            f"'{self.field}' would take the engine too long to compile: {_REASONS[what]}. The limit is {limit} "
            f"({setting}); simplify it.",
            field=self.field,
            limit=limit,
            setting=setting,
        )


def _most_counted(schema: dict[str, Any]) -> Any:
    most: Any = 1
    for name in _COUNTS & schema.keys():
        number = schema[name]
        if isinstance(number, int | float) and number > most:
            most = number
    return most


def expansion(text: str, *, grammar: bool = False) -> int:
    """How many characters and groups ``text`` has once every repetition with a count is written out."""
    open_groups: list[int] = []
    total = last = 0
    for part in (_GRAMMAR_PARTS if grammar else _REGEX_PARTS).finditer(text):
        kind = part.lastgroup
        if kind is None or kind == "text":
            last = 1
            total += 1 if kind is None else len(part[0])
        elif kind == "group":
            open_groups.append(total)
            total = last = 0
        elif kind == "end":
            if open_groups:
                last, total = max(total, 1), open_groups.pop() + max(total, 1)
        elif kind != "blank":
            times = _times(part[kind] or part["least"])
            total += last * (times - 1)
            last = min(last * times, _MOST)
    # A group that is never closed counts as it stands: the engine refuses the text.
    return total + sum(open_groups)


def _times(digits: str) -> int:
    return max(1, int(digits[:_MOST_DIGITS]) if len(digits) <= _MOST_DIGITS else 10**_MOST_DIGITS)
