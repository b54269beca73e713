"""Patterns for URIs of an upstream's resources. One URI can be spelled in many ways, so both spellings are matched."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

_PARTS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/?#]*))?(.*)", re.DOTALL)
_PATTERN_PARTS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(.*)", re.DOTALL)
_SEPARATORS: Final = re.compile(r"[/\\]")
_SLASHES: Final = re.compile(r"/{2,}")
_ESCAPES: Final = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
# Levels of nested escapes; deeper nesting is treated as an attempt to hide something.
_DEEPEST_ESCAPE: Final = 4
_SPECIAL: Final = re.compile(r"[*?[]")


def matches(text: str, patterns: tuple[str, ...]) -> bool:
    """Whether one of the shell patterns matches the whole text."""
    return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns)


def climbs(uri: str) -> bool:
    """Whether a path segment is ``.`` or ``..``, however it is escaped: such a path leads elsewhere than it says."""
    return any(map(_climbs, {uri, uri.partition(":")[2]}))


def plain(uri: str) -> str:
    """The plain spelling: scheme and host in lower case, escapes decoded.

    For ``file:``, no ``localhost`` and no empty segments.
    """
    return _plain(uri, _PARTS.fullmatch, unquote)


def plainly_matches(uri: str, patterns: tuple[str, ...]) -> bool:
    """Whether one of the patterns matches the plain spelling of the URI."""
    plain_patterns = tuple(
        _plain(pattern, _PATTERN_PARTS.fullmatch, _unquoted_pattern) for pattern in patterns
    )
    return matches(plain(uri), (*patterns, *plain_patterns))


def _climbs(escaped: str) -> bool:
    for _ in range(_DEEPEST_ESCAPE):
        decoded = unquote(escaped)
        if decoded == escaped:
            return any(segment in {".", ".."} for segment in _SEPARATORS.split(decoded))
        escaped = decoded
    return True


def _plain(text: str, parts_of: Callable[[str], re.Match[str] | None], unquoted: Callable[[str], str]) -> str:
    match = parts_of(text)
    if match is None:
        return unquoted(text)
    scheme, host, rest = match[1].lower(), match[2], unquoted(match[3])
    user, at, name = unquoted(host or "").rpartition("@")
    if scheme == "file" and rest.startswith("/"):
        host = "" if name.lower() == "localhost" else host or ""
        rest = _SLASHES.sub("/", rest)
        name = name if host else ""
    return f"{scheme}:{rest}" if host is None else f"{scheme}://{user}{at}{name.lower()}{rest}"


def _unquoted_pattern(pattern: str) -> str:
    """Decode escapes in a pattern. A decoded wildcard character matches only itself."""
    return _ESCAPES.sub(lambda run: _SPECIAL.sub(r"[\g<0>]", unquote(run[0])), pattern)
