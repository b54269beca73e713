"""Tokens counted with splintr, in the vocabularies that its wheel brings."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from cwm.domain.token_estimate import count_whole, estimate

if TYPE_CHECKING:
    from splintr import AnyTokenizer

DEFAULT_VOCABULARY: Final = "o200k_base"
# Splintr keeps the words that it met; those of more text than this are slower to find than to split again.
_CACHED_CHARS: Final = 250_000
# Letters, digits, white space, marks, scripts: what splits them is compiled at its first use, which takes longest.
_WARM_UP: Final = "Load it's 1234\n\n\tdéjà  vu (x_1 != {'y': [2.5]})  // ÆØ 快速 안녕 नमस्ते 👩‍👧\r\n"
_loading: Final = threading.Lock()


class BpeTokenCounter:
    """The port :class:`cwm.ports.token_counter.TokenCounter`: texts counted whole, very long ones estimated.

    The vocabulary takes 42 MB and a tenth to a quarter of a second in which nothing else runs, thread or not: it is loaded at the
    first count, or before that by ``load``.
    """

    def __init__(self, vocabulary: str = DEFAULT_VOCABULARY) -> None:
        self._vocabulary = vocabulary
        self._tokenizer: AnyTokenizer | None = None
        self._cached_chars = 0

    def load(self) -> AnyTokenizer:
        """The vocabulary, which is read unless it was."""
        with _loading:
            self._tokenizer = _tokenizer(self._vocabulary)
        return self._tokenizer

    def count(self, text: str) -> int:
        return estimate(_sound(text), self._count) if text else 0

    def count_whole(self, text: str) -> int:
        """Without an estimate, however long it takes."""
        return count_whole(_sound(text), self._count) if text else 0

    def _count(self, text: str) -> int:
        tokenizer = self._tokenizer or self.load()
        self._cached_chars += len(text)
        if self._cached_chars > _CACHED_CHARS:
            self._cached_chars = len(text)
            tokenizer.clear_cache()
        # Ordinary: a control token spelled out in a result is text to who reads it, and takes more tokens.
        return len(tokenizer.encode_ordinary(text))


@lru_cache(2)
def _tokenizer(vocabulary: str) -> AnyTokenizer:
    """Shared by all counters of a process: each takes 40 MB."""
    from splintr import Tokenizer

    tokenizer = Tokenizer.from_pretrained(vocabulary)
    tokenizer.encode_ordinary(_WARM_UP)
    return tokenizer


def _sound(text: str) -> str:
    """``text`` with what stands for no character replaced, as it is when it is sent."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return text
