"""Facts: names, numbers, paths, identifiers, quotations and instructions in what was said, and which of them a summary leaves out.

A comparison of texts, without a model: the same input gives the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from cwm.domain.word_sequences import WordSequences


class FactKind(StrEnum):
    URL = "url"
    PATH = "path"
    QUOTATION = "quotation"
    IDENTIFIER = "identifier"
    NUMBER = "number"
    NAME = "name"
    INSTRUCTION = "instruction"


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact, where it was said first: the position of its message, and whose that is."""

    kind: FactKind
    text: str
    message: int
    role: str


_UNITS: Final = (
    "ns|µs|us|ms|s|sec|seconds?|min|minutes?|h|hours?|days?|weeks?|months?|years?|[kKMGT]i?B|bytes?|tokens?|"
    "EUR|USD|GBP|CHF|mm|cm|m|km|g|kg|px|pt|Hz|[kMG]Hz|W|kW|V|°C|x"
)
# In this order: what an earlier one takes is no part of a later one. Each takes time linear in the text: none begins anew
# inside a run that it has already read, unless what it reads is bounded.
_PATTERNS: Final = (
    (FactKind.URL, re.compile(r"\b[a-z][a-z0-9+.-]{0,31}://[^\s<>\"'`)\]]+", re.IGNORECASE)),
    (FactKind.QUOTATION, re.compile(r"\"([^\"\n]{2,200})\"|“([^“”\n]{2,200})”|(?<!`)`([^`\n]{2,200})`(?!`)")),
    (
        FactKind.PATH,
        re.compile(
            r"(?<![\w/])(?:~|\.{1,2})?(?:/[\w@+-][\w.@+-]*+)++/?"
            r"|(?<![\w./@+-])\.*+([\w@+-][\w.@+-]*+(?:/[\w.@+-]++)++/?)"
            r"|\b[A-Za-z]:\\[\w.\\-]+|(?<![\w-])-*+(\w[\w-]*+\.(?:[a-z]{2,4}|c|h|[a-z]+[0-9])\b(?!\())"
        ),
    ),
    (
        FactKind.IDENTIFIER,
        re.compile(
            r"(?<!\w)--?[a-z][\w-]+|\b[A-Za-z]\w{0,127}+(?:\.\w{1,128}+){0,16}+\(\)|\b\w*[a-z0-9]_\w+\b|\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b"
            r"|\b[a-z]+[A-Z]\w*\b|\b(?=\w*\d)(?=\w*[a-f])[0-9a-f]{7,40}\b|\b(?!v\d+\.\d)[A-Za-z]+-?\d[\w-]*\b"
        ),
    ),
    (
        FactKind.NUMBER,
        re.compile(rf"(?<![\w.])[$€£]?v?\d+(?:[.,:_/-]\d+)*(?:\s?(?:%|(?:{_UNITS})\b)|(?![\w]))"),
    ),
)
_NAME: Final = re.compile(r"(?<![\w'’-])[A-Z][\w'’-]*[a-z0-9](?:[ -][A-Z][\w'’-]*[a-z0-9])*|\b[A-Z]{5,}\b")
_SENTENCE: Final = re.compile(r"[^.!?\n]+(?:[.!?](?!\s|$)[^.!?\n]*)*[.!?]?")
_ORDERS: Final = re.compile(
    r"\b(?:must|never|always|do not|don['’]t|only|make sure|ensure|avoid|remember|important|required?|should(?:n['’]t)?|"
    r"cannot|can['’]t|may not|no longer|instead of|prefer|keep|stick to|without)\b",
    re.IGNORECASE,
)
_ENDING: Final = re.compile(r"(?:ing|ed|es|s|e)$")
_WORD: Final = re.compile(r"\w+(?:['’-]\w+)*")
# Words and the characters between them; an empty text where two of these meet, so that a sequence has the edges of words.
_BY_WORDS: Final = re.compile(r"\w+|\B|\W")
_BY_PATHS: Final = re.compile(r"[\w/]+|[^\w/]")
_SMALL_WORDS: Final = frozenset(
    [
        "a",
        "an",
        "the",
        "and",
        "or",
        "but",
        "nor",
        "so",
        "if",
        "then",
        "than",
        "that",
        "this",
        "these",
        "those",
        "it",
        "its",
        "is",
        "are",
        "was",
        "were",
        "be",
        "been",
        "being",
        "to",
        "of",
        "in",
        "on",
        "at",
        "by",
        "for",
        "from",
        "with",
        "as",
        "into",
        "onto",
        "over",
        "under",
        "up",
        "down",
        "out",
        "off",
        "do",
        "does",
        "did",
        "done",
        "don't",
        "i",
        "you",
        "we",
        "they",
        "he",
        "she",
        "me",
        "my",
        "your",
        "our",
        "their",
        "them",
        "us",
        "his",
        "her",
        "please",
        "all",
        "any",
        "each",
        "every",
        "also",
        "just",
        "when",
        "while",
        "what",
        "which",
        "who",
        "how",
        "there",
        "here",
        "not",
        "no",
        "will",
        "would",
        "can",
        "could",
        "may",
        "might",
        "have",
        "has",
        "had",
    ]
)
_SHORTEST_NAME: Final = 2
_ORDER_SHARE: Final = 0.8
_LONGEST_TEXT: Final = 1_000_000
# A pattern searches a piece without letting other threads run.
_PIECE_CHARS: Final = 65_536
_LOOK_BACK_CHARS: Final = 64
_TEXT_ROLES: Final = frozenset({"user", "assistant"})


def facts_in(messages: Iterable[Mapping[str, Any]]) -> list[Fact]:
    """The distinct facts in what the user and the assistant said, in the order in which they were said first."""
    facts: dict[tuple[FactKind, str], Fact] = {}
    for position, message in enumerate(messages):
        role = str(message.get("role", ""))
        if role in _TEXT_ROLES:
            for kind, text in _facts("\n".join(_texts(message.get("content"))), instructions=role == "user"):
                facts.setdefault((kind, _plain(kind, text)), Fact(kind, text, position, role))
    return list(facts.values())


def left_out(facts: Iterable[Fact], messages: Iterable[Mapping[str, Any]]) -> list[Fact]:
    """The facts that are not in these messages, in any role, word for word; of an instruction most words may stand anywhere."""
    text = "\n".join(text for message in messages for text in _everything(message))[:_LONGEST_TEXT]
    words = frozenset(_stem(word.group()) for word in _WORD.finditer(text.lower()))
    numbers = {
        _plain(FactKind.NUMBER, number.group())
        for piece in _pieces(text)
        for number in _PATTERNS[-1][1].finditer(piece)
    }
    whole = " ".join(text.lower().split())
    missing, exact = dict[int, Fact](), list[tuple[int, Fact]]()
    for position, fact in enumerate(facts):
        if fact.kind is FactKind.INSTRUCTION:
            if not _is_worded(fact, words):
                missing[position] = fact
        elif fact.kind is not FactKind.NUMBER or _plain(fact.kind, fact.text) not in numbers:
            exact.append((position, fact))
    for pattern, names in ((_BY_PATHS, True), (_BY_WORDS, False)):
        candidates = [each for each in exact if (each[1].kind is FactKind.NAME) is names]
        sequences = [[*_cut(pattern, _plain(fact.kind, fact.text))] for _, fact in candidates]
        presences = WordSequences(sequences).found_in(_cut(pattern, whole)) if sequences else []
        missing.update(each for each, is_there in zip(candidates, presences, strict=True) if not is_there)
    return [missing[position] for position in sorted(missing)]


def _is_worded(instruction: Fact, words: frozenset[str]) -> bool:
    weighty = [_stem(word) for word in _WORD.findall(instruction.text.lower()) if word not in _SMALL_WORDS]
    return sum(word in words for word in weighty) >= _ORDER_SHARE * len(weighty)


def _cut(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    return (match.group() for match in pattern.finditer(text))


def _stem(word: str) -> str:
    return _ENDING.sub("", word)


def _facts(text: str, *, instructions: bool) -> Iterator[tuple[FactKind, str]]:
    for piece in _pieces(text[:_LONGEST_TEXT]):
        yield from _facts_of_piece(piece, instructions=instructions)


def _pieces(text: str) -> Iterator[str]:
    """The text in pieces of at most 65,536 characters: whole lines, or whole words of a longer line, where there are any."""
    start = 0
    while start < len(text):
        end = start + _PIECE_CHARS
        if end < len(text):
            end = text.rfind("\n", start, end) + 1 or text.rfind(" ", start, end) + 1 or end
        yield text[start:end]
        start = end


def _facts_of_piece(text: str, *, instructions: bool) -> Iterator[tuple[FactKind, str]]:
    if instructions:
        for sentence in _SENTENCE.finditer(text):
            if _ORDERS.search(sentence.group()) and len(sentence.group().split()) > 2:
                yield FactKind.INSTRUCTION, sentence.group().strip()
    for kind, pattern in _PATTERNS:
        spans = list(pattern.finditer(text))
        for match in spans:
            inner = next((group for group in match.groups() if group), match.group())
            fact = inner.strip().rstrip(".,:;/-" if kind is not FactKind.PATH else ".,:;")
            if kind is FactKind.QUOTATION or _weighs(kind, fact):
                yield kind, fact
        text = _blanked(text, spans)
    yield from ((FactKind.NAME, name) for name in _names(text))


def _names(text: str) -> Iterator[str]:
    """Capitalised words, but not the one that begins a sentence."""
    for match in _NAME.finditer(text):
        before = text[max(0, match.start() - _LOOK_BACK_CHARS) : match.start()].rstrip(" *_#>-\"'(")
        name = match.group()
        if not before or before[-1] in ".!?:\n":
            name = name.partition(" ")[2]
        if len(name) > _SHORTEST_NAME and name.lower() not in _SMALL_WORDS:
            yield name


def _weighs(kind: FactKind, fact: str) -> bool:
    if kind is FactKind.NUMBER:
        return sum(character.isdigit() for character in fact) > 1 or not fact.isdigit()
    return len(fact) > 1


def _plain(kind: FactKind, text: str) -> str:
    text = " ".join(text.lower().split())
    if kind is FactKind.NUMBER:
        return re.sub(r"(?<=\d)[,_](?=\d{3}\b)|[^\d.,:_/-]", "", text)
    return text


def _blanked(text: str, spans: Iterable[re.Match[str]]) -> str:
    pieces, end = [], 0
    for span in spans:
        pieces += [text[end : span.start()], " " * (span.end() - span.start())]
        end = span.end()
    return "".join([*pieces, text[end:]])


def _texts(content: Any) -> Iterator[str]:
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            yield text


def _everything(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _everything(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _everything(inner)
