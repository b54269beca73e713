"""JSON values, schemas they are valid by, and what it means that one is a reduction of another."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import strategies as st

from cwm.ports.token_counter import TokenCounter

LETTERS = st.characters(codec="utf-8", exclude_characters="…[]")
SENTENCE = st.sampled_from(
    (
        "The build failed on the second machine. ",
        "Dr. Osei paid $3.50 to Acme Inc. and left.\n",
        "今日は雨です。明日は晴れるでしょう。",
        "هل هذه جملة؟ ",
        "2026-11-21T10:00:00Z ERROR worker-3 lost its connection\n",
        "👩‍👩‍👧‍👦🇩🇪 e\u0301 ",
        "aGVsbG8gd29ybGQgYW5kIGV2ZXJ5Ym9keQ",
    )
)
LONG_TEXT = st.lists(SENTENCE, min_size=3, max_size=60).map("".join)
NAMES = st.sampled_from(
    ("id", "name", "status", "body", "items", "a.b", "total_count", "user", "url", "Notizen")
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
)
TEXTS = st.text(LETTERS, max_size=20) | LONG_TEXT
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=12)
        | st.dictionaries(NAMES | st.text(LETTERS, max_size=6), inner, max_size=8)
    ),
    max_leaves=60,
)
OBJECTS = st.dictionaries(NAMES, VALUES, min_size=1, max_size=6)
MAPS = st.dictionaries(st.text(LETTERS, min_size=1, max_size=8), SCALARS | TEXTS, min_size=66, max_size=90)


class Thirds(TokenCounter):
    """Three characters a token: quick, and as strict as a real counter about what a budget is."""

    def __init__(self) -> None:
        self.characters = 0

    def count(self, text: str) -> int:
        self.characters += len(text)
        return -(-len(text) // 3)


@st.composite
def schemas(draw: st.DrawFn, value: Any) -> dict[str, Any]:
    """A schema that ``value`` is valid by, with demands of many kinds."""
    root = draw(_schema(value))
    if draw(st.booleans()):
        return {"$defs": {"it": root}, "$ref": "#/$defs/it"}
    return root


@st.composite
def _schema(draw: st.DrawFn, value: Any) -> dict[str, Any]:
    if draw(st.integers(0, 9)) == 0:
        return {}
    if isinstance(value, dict):
        schema = draw(_of_object(value))
    elif isinstance(value, list):
        schema = draw(_of_list(value))
    elif isinstance(value, str):
        schema = draw(_of_text(value))
    else:
        schema = draw(
            st.sampled_from(({"enum": [value]}, {"not": {"type": "string"}}, {"type": _type(value)}))
        )
    return draw(
        st.sampled_from(
            (
                schema,
                schema,
                {"anyOf": [{"const": "none of it"}, schema]},
                {"oneOf": [{"type": "array", "maxItems": 0, "minItems": 1}, schema]},
                {"allOf": [schema, {}]},
                {"not": {"not": schema}},
                {"if": schema, "then": schema, "else": False},
            )
        )
    )


@st.composite
def _of_object(draw: st.DrawFn, value: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    named = [name for name in value if draw(st.booleans())]
    schema["properties"] = {name: draw(_schema(value[name])) for name in named}
    if draw(st.booleans()) and value:
        schema["required"] = draw(st.lists(st.sampled_from(list(value)), unique=True))
    if draw(st.booleans()):
        schema["minProperties"] = draw(st.integers(0, len(value)))
    if len(value) > 1 and draw(st.booleans()):
        one, other = list(value)[:2]
        schema["dependentRequired"] = {one: [other]}
    if len(named) == len(value) and draw(st.booleans()):
        schema["additionalProperties"] = False
    if value and draw(st.integers(0, 5)) == 0:
        schema["anyOf"] = [{"required": ["no such"]}, {"required": [next(iter(value))]}]
    return schema


@st.composite
def _of_list(draw: st.DrawFn, value: list[Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array"}
    if draw(st.booleans()):
        schema["minItems"] = draw(st.integers(0, len(value)))
    if 0 < len(value) < 5:
        inner = [draw(_schema(item)) for item in value]
        schema |= draw(st.sampled_from(({"items": {"anyOf": inner}}, {"prefixItems": inner})))
        if draw(st.integers(0, 4)) == 0:
            schema["contains"] = inner[-1]
    if len({repr(item) for item in value}) == len(value) and not _mixed(value) and draw(st.booleans()):
        schema["uniqueItems"] = True
    return schema


def _mixed(value: list[Any]) -> bool:
    """Numbers that are equal though they are written differently make lists that look unique and are not."""
    return any(isinstance(item, (bool, int, float, list, dict)) for item in value)


@st.composite
def _of_text(draw: st.DrawFn, value: str) -> dict[str, Any]:
    start = value[:3]
    return draw(
        st.sampled_from(
            (
                {"type": "string"},
                {"type": "string", "minLength": len(value) // 2, "maxLength": len(value)},
                {"minLength": len(value)},
                {"const": value},
                {"enum": [value, "other"]},
                {"pattern": "^" + re.escape(start) if start.isalnum() else ""},
                {"type": "string", "format": "uri-template"} if start.isalpha() else {},
            )
        )
    )


def _type(value: Any) -> str:
    if value is None:
        return "null"
    return "boolean" if isinstance(value, bool) else "number"


_MARK = re.compile(r"\s?(?:… ?)?\[[\d,]+ (?:more|earlier) (?:word|character|line)s?\](?: …)?\s?")


def is_reduction(original: Any, preview: Any) -> bool:
    """Whether all that a preview says is said by the original, and every text that was cut says so."""
    if isinstance(original, dict) and isinstance(preview, dict):
        return all(name in original and is_reduction(original[name], preview[name]) for name in preview)
    if isinstance(original, list) and isinstance(preview, list):
        rest = iter(original)
        return all(any(is_reduction(one, item) for one in rest) for item in preview)
    if isinstance(original, str) and isinstance(preview, str):
        return original == preview or is_shortening(original, preview)
    return type(original) is type(preview) and bool(original == preview)


def is_shortening(original: str, text: str) -> bool:
    if not _MARK.search(text) or len(text) >= len(original):
        return False
    parts = [part for whole in _MARK.split(text) for part in re.split(r"\s…\s", whole)]
    return all(part.strip() in original for part in parts)
