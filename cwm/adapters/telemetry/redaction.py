"""Masks secrets in log lines: configured values, and text that looks like a secret."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, Final
from urllib.parse import quote

MASK: Final = "[hidden]"

# A shorter value is likely an ordinary word, and is not masked.
SHORTEST: Final = 6
_QUOTED: Final = r"(?:\\?[\"'])?"
_LOOKS_LIKE_ONE: Final[tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]] = (
    # A JSON web token, anywhere. What only begins like one is passed over whole, so that no text is read twice.
    (
        re.compile(r"\beyJ[A-Za-z0-9_-]{8,}+(\.[A-Za-z0-9_-]++\.[A-Za-z0-9_-]*+)?"),
        lambda match: MASK if match[1] else match[0],
    ),
    # An API key of ours (domain/api_key.py).
    (re.compile(r"\bcwm_[0-9a-f]{16}_[A-Za-z0-9_-]{43}"), MASK),
    (re.compile(r"\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE), rf"\1\2{MASK}"),
    # The password in a URL.
    (re.compile(r"((?<=[a-z0-9+.-])://[^\s/:@\"']*):[^\s/@\"']+@", re.IGNORECASE), rf"\1:{MASK}@"),
    # The value of a header, form field or argument whose name means a secret.
    (
        re.compile(
            rf"((?<![a-z0-9])(?:authorization|api[_-]?key|access[_-]?token|refresh[_-]?token|id[_-]?token"
            rf"|client[_-]?secret|password|passwd|secret|set-cookie|cookie){_QUOTED}\s*[=:]\s*{_QUOTED})"
            r"(?!\[hidden\]|(?:bearer|basic)\s|None\b|null\b)[^\s\"',;&\\]+",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
)
_MAY_HOLD_ONE: Final = re.compile(
    r"eyJ|cwm_|bearer|basic|://|authorization|api[_-]?key|token|secret|passw|cookie", re.IGNORECASE
)


class Redaction:
    """The last structlog processor: it gets every line as text, so no secret bypasses it."""

    def __init__(self) -> None:
        self._secrets: frozenset[str] = frozenset()
        self._values: re.Pattern[str] | None = None

    def hide(self, secrets: Iterable[str]) -> None:
        """Mask these values too from now on, also in their JSON, URL and ``repr`` forms."""
        self._secrets |= {secret for secret in secrets if len(secret) >= SHORTEST}
        spellings = {spelling for secret in self._secrets for spelling in _spellings(secret)}
        longest_first = sorted(spellings, key=lambda one: (-len(one), one))
        self._values = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, text: str) -> str:
        if self._values is not None:
            text = self._values.sub(MASK, text)
        if _MAY_HOLD_ONE.search(text):
            for looks, masked in _LOOKS_LIKE_ONE:
                text = looks.sub(masked, text)
        return text

    def __call__(self, _logger: Any, _name: str, line: str | MutableMapping[str, Any]) -> str:
        return self.text(str(line))


HIDDEN: Final = Redaction()
"""The redaction of this process; like logging, it is global."""


def _spellings(secret: str) -> set[str]:
    spellings = {secret, repr(secret)[1:-1], quote(secret, safe="")}
    for ascii_only in (True, False):
        as_json = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        spellings |= {as_json, json.dumps(as_json, ensure_ascii=ascii_only)[1:-1]}
    return spellings
