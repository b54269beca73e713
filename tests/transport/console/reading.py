"""Reads pages as a browser does: their elements, their text, and what they would load or run."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise
from typing import Final

import httpx2

from cwm.wiring.parts import Parts

_VOID: Final = frozenset({"meta", "link", "input", "img", "br"})
# Which elements of drawings stand alone is said by a slash.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

TRACES: Final = "https://traces.test/trace/"
"""Where the tracing UI of tests would be: the only address outside to which a page may link."""


@dataclass
class Element:
    name: str
    attributes: dict[str, str]
    text: str = ""


@dataclass
class Document(HTMLParser):
    """A page. ``problems``: elements that are not closed in order."""

    source: str
    elements: list[Element] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[Element] = []
        self.feed(self.source)
        self.close()
        self.problems += [f"<{each.name}> stays open" for each in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop().name != tag:
            self.problems.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def all(self, name: str, **attributes: str) -> list[Element]:
        return [
            each
            for each in self.elements
            if each.name == name
            and all(
                value in each.attributes.get(key.rstrip("_"), "").split() for key, value in attributes.items()
            )
        ]

    def one(self, name: str, **attributes: str) -> Element:
        (element,) = self.all(name, **attributes)
        return element

    @property
    def text(self) -> str:
        """All that a person can read, in one line."""
        return " ".join(self.one("body").text.split())

    @property
    def links(self) -> dict[str, str]:
        """Addresses by what leads to them."""
        return {" ".join(each.text.split()): each.attributes["href"] for each in self.all("a")}


@dataclass(frozen=True)
class Console:
    http: httpx2.AsyncClient
    parts: Parts

    async def answer(self, path: str = "", **headers: str) -> httpx2.Response:
        return await self.http.get(f"/console{path}", headers=headers)

    async def page(self, path: str = "", status: int = 200) -> Document:
        """The page at a path below ``/console``. It is whole, runs nothing of its own and loads nothing from elsewhere."""
        answer = await self.answer(path)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["cache-control"] == "no-store"
        return sound(Document(answer.text))


def sound(document: Document) -> Document:
    """The same page, of which everything holds that must hold of every page."""
    assert document.problems == []
    for element in document.elements:
        assert element.name not in {"style", "base", "iframe", "object", "embed"}
        for name, value in element.attributes.items():
            assert name != "style"
            assert not name.startswith("on")
            if name in {"href", "src", "action"}:
                is_outside = element.attributes.get("rel") == "noreferrer" and value.startswith(TRACES)
                assert is_outside or value.startswith(("/console", "#")), value
        if element.name == "script":
            assert element.attributes["src"].startswith("/console/static/")
            assert element.text == ""
        if element.name in {"a", "button"}:
            assert element.text.strip(), element
        if element.name == "time":
            assert element.attributes["datetime"].endswith("Z")
        if element.name in {"input", "select"} and element.attributes.get("type") != "hidden":
            assert document.all("label", for_=element.attributes["id"])
    assert document.one("html").attributes["lang"] == "en"
    assert document.one("a", class_="skip").attributes["href"] == "#content"
    assert document.one("main").attributes["id"] == "content"
    ids = [each.attributes["id"] for each in document.elements if "id" in each.attributes]
    assert len(ids) == len(set(ids))
    levels = [int(each.name[1]) for each in document.elements if each.name in {"h1", "h2", "h3"}]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    return document
