"""Runs one regular expression on text made against it. A program: the limit on its processor time ends it if it must.

Standard input: JSON with ``pattern`` (as Latin-1 where ``bytes``), ``flags``, ``anywhere``, ``whole``, ``length``.
Standard output: JSON lines, each what is about to be run; the last one is what took too long where the program was ended.
"""

from __future__ import annotations

import json
import random
import re
import resource
import sys
import time
import warnings
from collections.abc import Iterator
from itertools import permutations
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from re import _compiler, _constants, _parser  # type: ignore[attr-defined]

# All texts short, then the slowest of them longer: the most characters, and how many texts go on to the next round.
ROUNDS = ((12_000, 12), (48_000, 3), (1 << 30, 0))
MOST_PAIRED = 14
BEYOND_ASCII = "é٣µ€°“”’中。ا\u3000\u200b"
REPEATS = {_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT}
ASSERTIONS = {_constants.ASSERT, _constants.ASSERT_NOT}
SINGLE = {_constants.LITERAL, _constants.NOT_LITERAL, _constants.IN, _constants.ANY, _constants.CATEGORY}


class Tree:
    """A pattern taken apart. ``letters``: one character for each set of its single-character parts that some character matches."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self.flags = flags
        self.binary = isinstance(pattern, bytes)
        self.top = _parser.parse(pattern, flags)
        self.state = self.top.state
        self.random = random.Random(1)
        keys = list(dict.fromkeys(map(repr, self._singles(self.top))))
        # What an assertion such as \\b tells apart counts, too.
        parts = [*map(self._one, keys), *(re.compile(self.coded(each)) for each in (r"\w", r"\n"))]
        alphabet = [chr(code) for code in range(128)] + ([] if self.binary else [*BEYOND_ASCII])
        by_parts: dict[tuple[bool, ...], str] = {}
        # Letters first, so that what stands for others can be read.
        for letter in sorted(alphabet, key=lambda each: (not each.isalnum(), not each.isprintable(), each)):
            by_parts.setdefault(
                tuple(part.fullmatch(self.coded(letter)) is not None for part in parts), letter
            )
        self.letters = list(by_parts.values())
        self.matched = [letter for parts_of, letter in by_parts.items() if any(parts_of[: len(keys)])]
        self._members: dict[str, list[str]] = {}
        for number, text in enumerate(keys):
            self._members[text] = [letter for parts_of, letter in by_parts.items() if parts_of[number]]

    def coded(self, text: str) -> str | bytes:
        return text.encode("latin-1") if self.binary else text

    def _one(self, text: str) -> Any:
        return self._by_text[text]

    def _singles(self, tree: Any) -> Iterator[Any]:
        if not hasattr(self, "_by_text"):
            self._by_text: dict[str, Any] = {}
        for operation, value in tree:
            if operation in SINGLE:
                single = _parser.SubPattern(self.state, [(operation, value)])
                key = repr(self._key(operation, value))
                if key not in self._by_text:
                    self._by_text[key] = _compiler.compile(single, self.flags)
                yield self._key(operation, value)
            else:
                for inner in self._inner(operation, value):
                    yield from self._singles(inner)

    @staticmethod
    def _key(operation: Any, value: Any) -> tuple[str, str]:
        return str(operation), str(value)

    @staticmethod
    def _inner(operation: Any, value: Any) -> list[Any]:
        """The trees below."""
        if operation is _constants.BRANCH:
            return list(value[1])
        if operation is _constants.ATOMIC_GROUP:
            return [value]
        if operation is _constants.GROUPREF_EXISTS:
            return [each for each in value[1:] if each is not None]
        if operation in (REPEATS | ASSERTIONS | {_constants.SUBPATTERN}):
            return [value[-1]]
        return []

    def sample(self, tree: Any) -> str:
        """Text that the tree matches, as far as its assertions allow."""
        pieces = []
        for operation, value in tree:
            if operation in SINGLE:
                members = self._members[repr(self._key(operation, value))]
                pieces.append(self.random.choice(members) if members else "a")
            elif operation is _constants.BRANCH:
                pieces.append(self.sample(self.random.choice(value[1])))
            elif operation in REPEATS:
                least, most, body = value
                count = min(int(most), int(least) + self.random.choice((0, 1, 1, 2)))
                pieces += [self.sample(body) for _ in range(count)]
            elif operation not in ASSERTIONS:
                pieces += [self.sample(inner) for inner in self._inner(operation, value)]
        return "".join(pieces)

    def pumps(self, tree: Any, before: str = "") -> Iterator[tuple[str, str, int]]:
        """For each repetition: text that leads to it, text that it may repeat, and how often at least."""
        for operation, value in tree:
            if operation in REPEATS:
                yield before, self.sample(value[2]), int(value[0])
            for inner in self._inner(operation, value):
                yield from self.pumps(inner, before)
            if operation not in ASSERTIONS:
                before += self.sample([(operation, value)])


def attacks(tree: Tree, length: int) -> Iterator[tuple[str, str]]:
    """Names of texts, and texts of about ``length`` characters. The order and the names are the same for every length."""
    tree.random.seed(1)
    # One that nothing matches ends every run.
    others = [letter for letter in tree.letters if letter not in tree.matched][:1]
    letters = [*others, *(letter for letter in tree.letters if letter not in others)]
    for letter in letters:
        yield f"run of {letter!r}", letter * length
    for one, other in permutations(letters[:MOST_PAIRED], 2):
        yield again(one + other, length)
        yield f"run of {one!r}, then of {other!r}", one * (length // 2) + other * (length // 2)
    for _ in range(6):
        sample = tree.sample(tree.top)
        for cut in {len(sample), len(sample) - 1, tree.random.randrange(len(sample) + 1)}:
            yield again(sample[:cut] or "a", length)
    ends = ["", *(each for each in ("\x00", "\n", "!", "a") if each in tree.letters)]
    for before, pump, least in [*tree.pumps(tree.top), *tree.pumps(tree.top)]:
        for end in ends:
            run = (pump or "a") * (length // len(pump or "a") + 1)
            yield f"{before!r}, then a run of {pump!r}, then {end!r}", before + run + end
            yield again(before + run[: int(length**0.5)] + end, length, f"a run of {pump!r} in blocks")
        for letter in letters[:MOST_PAIRED]:
            yield again(before + pump * (least + 2) + letter, length)


def again(piece: str, length: int, what: str = "") -> tuple[str, str]:
    return f"{what or repr(piece)} again and again", piece * (length // len(piece) + 1)


def run(pattern: Any, text: str | bytes, *, anywhere: bool, whole: bool) -> float:
    """Seconds of processor time."""
    began = time.process_time()
    if anywhere:
        for _ in pattern.finditer(text):
            pass
    if whole:
        pattern.fullmatch(text)
        pattern.match(text)
    return time.process_time() - began


def main() -> None:
    asked = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CPU, (asked["seconds"], asked["seconds"]))
    written: str = asked["pattern"]
    pattern = re.compile(written.encode("latin-1") if asked["bytes"] else written, asked["flags"])
    tree = Tree(pattern.pattern, pattern.flags & ~(0 if asked["bytes"] else int(re.UNICODE)))
    how = {"anywhere": asked["anywhere"], "whole": asked["whole"]}

    def told(name: str, length: int) -> None:
        sys.stdout.write(json.dumps({"text": name, "length": length}) + "\n")
        sys.stdout.flush()

    kept: set[str] | None = None
    for most, count in ROUNDS:
        took: dict[str, float] = {}
        for name, text in attacks(tree, min(most, asked["length"])):
            if kept is None or name in kept:
                told(name, len(text))
                took[name] = run(pattern, tree.coded(text), **how)
        kept = set(sorted(took, key=lambda name: -took[name])[:count])


if __name__ == "__main__":
    main()
