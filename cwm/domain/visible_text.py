"""Text of others as a person can see it, on a terminal and in the console."""

from __future__ import annotations

import re
from typing import Final

# Controls, marks that set a direction, and characters without a width. Two of these stay: scripts and emoji need the joiners.
_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
_BREAKS: Final = {ord("\n"): "\u240a", ord("\t"): "\u2409"}
_PICTURES: Final = 0x2400
_DELETE: Final = 0x7F


def visible(text: str) -> str:
    """The text with a sign in place of each character that shows nothing and changes what is around it. Lines and tabs stay."""
    return _UNSEEN.sub(_sign, text)


def visible_in_line(text: str) -> str:
    """The same in one line: line breaks and tabs have signs, too."""
    return visible(text).translate(_BREAKS)


def visible_json(document: str) -> str:
    """JSON of the same value, with JSON's escapes in place of such characters."""
    return _UNSEEN.sub(_json_escape, document)


def _sign(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(_PICTURES + code)
    if code == _DELETE:
        return "\u2421"
    return f"\u27e8U+{code:04X}\u27e9"


def _json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
