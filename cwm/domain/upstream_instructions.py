"""Instructions of upstreams within those that CWM gives its clients: quoted, named and bounded."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Final

_MOST_CHARS: Final = 2_000
_MOST_CHARS_IN_ALL: Final = 8_000
_READ_CHARS: Final = 4 * _MOST_CHARS
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Co", "Cs", "Cn"})


def with_instructions(own: str, of_upstreams: Mapping[str, str]) -> str:
    """``own``, then what each upstream tells of itself, by name.

    Every line of an upstream is quoted, so that none passes for CWM's or for another upstream's.
    """
    blocks, omitted, left = [own], list[str](), _MOST_CHARS_IN_ALL
    for upstream, text in of_upstreams.items():
        words = _printable(text[:_READ_CHARS])
        part = words[: min(_MOST_CHARS, left)].rstrip()
        if not part:
            omitted += [upstream] if words else []
            continue
        left -= len(part)
        is_whole = len(part) == len(words) and len(text) <= _READ_CHARS
        extent = "" if is_whole else f", of which these are the first {len(part)} characters"
        quotation = "\n".join(f"> {line}".rstrip() for line in part.split("\n"))
        blocks.append(
            f"Instructions of the server {upstream}, whose tools have the prefix {upstream}_ here{extent}:\n{quotation}"
        )
    if omitted:
        blocks.append(f"Left out, as there are too many: the instructions of {', '.join(omitted)}.")
    return "\n\n".join(blocks)


def _printable(text: str) -> str:
    """The text without what no reader sees: control characters, marks of direction, halves of surrogate pairs."""
    lines = text.replace("\r\n", "\n").replace("\u2028", "\n").replace("\u2029", "\n")
    return "".join(
        each for each in lines if each in "\n\t" or unicodedata.category(each) not in _INVISIBLE
    ).strip()
