"""Sequences of words in a text: which of many stand there, found in one pass over it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class WordSequences:
    """Looks for all sequences at once, by Aho and Corasick: the time grows with their words and the text's, not with the product."""

    def __init__(self, sequences: Sequence[Sequence[str]]) -> None:
        # A node is a beginning of a sequence; 0 is the empty one. Its longest end that is a beginning, too, is the shorter node.
        self._next: dict[tuple[int, str], int] = {}
        self._shorter = [0]
        self._ends = [0] * len(sequences)
        depth, growing = 0, list(range(len(sequences)))
        # By length, since a longer node leads to shorter ones.
        while growing := [index for index in growing if len(sequences[index]) > depth]:
            for index in growing:
                self._ends[index] = self._grown(self._ends[index], sequences[index][depth])
            depth += 1

    def found_in(self, words: Iterable[str]) -> list[bool]:
        """For each sequence, whether it stands in ``words`` without a gap."""
        node, seen = 0, bytearray(len(self._shorter))
        seen[0] = 1
        for word in words:
            node = at = self._after(node, word)
            while not seen[at]:
                seen[at] = 1
                at = self._shorter[at]
        return [bool(seen[end]) for end in self._ends]

    def _grown(self, node: int, word: str) -> int:
        if (longer := self._next.get((node, word))) is not None:
            return longer
        self._shorter.append(self._after(self._shorter[node], word) if node else 0)
        longer = self._next[node, word] = len(self._shorter) - 1
        return longer

    def _after(self, node: int, word: str) -> int:
        """The longest node at the end of a text, once ``word`` follows."""
        while (longer := self._next.get((node, word))) is None:
            if not node:
                return 0
            node = self._shorter[node]
        return longer
