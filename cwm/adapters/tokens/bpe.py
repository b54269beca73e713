"""Counts tokens with splintr, in the vocabularies that its wheel contains."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from cwm.domain.token_estimate import count_whole, estimate

if TYPE_CHECKING:
    from splintr import AnyTokenizer

DEFAULT_VOCABULARY: Final = "o200k_base"
# splintr caches the words of the texts; for more text than this, a look-up is slower than splitting again.
_CACHED_CHARS: Final = 250_000
# Letters, digits, white space, marks, scripts: splintr compiles a splitter for each at its first use, the slowest step.
_WARM_UP: Final = "Load it's 1234\n\n\tdéjà  vu (x_1 != {'y': [2.5]})  // ÆØ 快速 안녕 नमस्ते 👩‍👧\r\n"
_loading: Final = threading.Lock()


class BpeTokenCounter:
    """The port :class:`cwm.ports.token_counter.TokenCounter`: counts texts, and estimates very long ones.

    The vocabulary takes 42 MB, and loading it blocks all threads for 0.1 to 0.25 s: it is loaded at the first count, or
    earlier by ``load``.
    """

    def __init__(self, vocabulary: str = DEFAULT_VOCABULARY) -> None:
        self._vocabulary = vocabulary
        self._tokenizer: AnyTokenizer | None = None
        self._cached_chars = 0

    def load(self) -> AnyTokenizer:
        """The vocabulary, read if it is not loaded."""
        with _loading:
            self._tokenizer = _tokenizer(self._vocabulary)
        return self._tokenizer

    def count(self, text: str) -> int:
        return estimate(_sound(text), self._count) if text else 0

    def count_whole(self, text: str) -> int:
        """The exact count of a text of any length, without an estimate."""
        return count_whole(_sound(text), self._count) if text else 0

    def _count(self, text: str) -> int:
        tokenizer = self._tokenizer or self.load()
        self._cached_chars += len(text)
        if self._cached_chars > _CACHED_CHARS:
            self._cached_chars = len(text)
            tokenizer.clear_cache()
        # encode_ordinary: a control token's name in a result is ordinary text to the model and takes several tokens.
        return len(tokenizer.encode_ordinary(text))


@lru_cache(2)
def _tokenizer(vocabulary: str) -> AnyTokenizer:
    """The tokenizer, shared by all counters of a process: each takes 40 MB."""
    from splintr import Tokenizer

    tokenizer = Tokenizer.from_pretrained(vocabulary)
    tokenizer.encode_ordinary(_WARM_UP)
    return tokenizer


def _sound(text: str) -> str:
    """``text`` with lone surrogates replaced, as it is when it is sent."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return text
