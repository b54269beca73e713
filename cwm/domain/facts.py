"""Facts: names, numbers, paths, identifiers, quotations and instructions in what was said, and which of them a summary leaves out.

A comparison of texts, without a model: the same input gives the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


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
# In this order: what an earlier one takes is no part of a later one.
_PATTERNS: Final = (
    (FactKind.URL, re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s<>\"'`)\]]+", re.IGNORECASE)),
    (FactKind.QUOTATION, re.compile(r"\"([^\"\n]{2,200})\"|“([^”\n]{2,200})”|(?<!`)`([^`\n]{2,200})`(?!`)")),
    (
        FactKind.PATH,
        re.compile(
            r"(?<![\w/])(?:~|\.{1,2})?(?:/[\w@+-][\w.@+-]*)+/?|(?<![\w/])[\w@+-][\w.@+-]*(?:/[\w.@+-]+)+/?"
            r"|\b[A-Za-z]:\\[\w.\\-]+|\b[\w-]+\.(?:[a-z]{2,4}|c|h|[a-z]+[0-9])\b(?!\()"
        ),
    ),
    (
        FactKind.IDENTIFIER,
        re.compile(
            r"(?<!\w)--?[a-z][\w-]+|\b[A-Za-z]\w*(?:\.\w+)*\(\)|\b\w*[a-z0-9]_\w+\b|\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b"
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
    lowered, words = " ".join(text.lower().split()), frozenset(map(_stem, _WORD.findall(text.lower())))
    numbers = {_plain(FactKind.NUMBER, number.group()) for number in _PATTERNS[-1][1].finditer(text)}
    return [fact for fact in facts if not _is_in(fact, lowered, words, numbers)]


def _is_in(fact: Fact, text: str, words: frozenset[str], numbers: set[str]) -> bool:
    if fact.kind is FactKind.INSTRUCTION:
        weighty = [_stem(word) for word in _WORD.findall(fact.text.lower()) if word not in _SMALL_WORDS]
        return sum(word in words for word in weighty) >= _ORDER_SHARE * len(weighty)
    plain = _plain(fact.kind, fact.text)
    if fact.kind is FactKind.NUMBER and plain in numbers:
        return True
    edge = r"[\w/]" if fact.kind is FactKind.NAME else r"\w"
    return plain in text and re.search(rf"(?<!{edge}){re.escape(plain)}(?!{edge})", text) is not None


def _stem(word: str) -> str:
    return _ENDING.sub("", word)


def _facts(text: str, *, instructions: bool) -> Iterator[tuple[FactKind, str]]:
    text = text[:_LONGEST_TEXT]
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
        before = text[: match.start()].rstrip(" *_#>-\"'(")
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
