"""The pages of the console as a browser asks for them: how long each takes, and how much is transferred."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import unescape
from typing import Final

import httpx2

from cwm_bench.console.conversation import LAST_WORDS, SESSION, Conversation
from cwm_bench.scale.lists import QueryTimes, Stopwatch
from cwm_bench.scale.rows import name_of, session_id_of

TREE: Final = "the tree of the long conversation"
_NOTHING: Final = "zyzzyva+quux"


@dataclass(frozen=True, slots=True)
class PageFigures:
    """``times`` of one page in ms, and its ``size`` in bytes as it is transferred, without headers."""

    times: QueryTimes
    size: int


def addresses(window_count: int, conversation: Conversation) -> dict[str, str]:
    """Every page, by what it shows."""
    window = name_of(window_count // 3)
    query = LAST_WORDS.replace(" ", "+")
    return {
        "overview": "",
        "conversations": "/conversations",
        "conversations, one state": "/conversations?state=frozen",
        "search: words of the newest conversation": f"/conversations?q={query}",
        "search: words of many": "/conversations?q=refactor+incident",
        "search: words that nobody said": f"/conversations?q={_NOTHING}",
        "search: the id of a conversation": f"/conversations?q={SESSION}",
        TREE: f"/conversations/{SESSION}",
        f"{TREE}, further back": f"/conversations/{SESSION}?before=200",
        "a short conversation": f"/conversations/{session_id_of(1)}",
        "the last turn of the long one": f"/turns/{conversation.last}",
        "a turn in its middle": f"/turns/{conversation.middle}",
        "its first messages": f"/turns/{conversation.last}?upto=40",
        "a turn of a short one": f"/turns/turn_{1:024x}{3:08x}",
        "comparison of two turns": f"/compare?left=turn:{conversation.middle}&right=turn:{conversation.last}",
        "windows": "/windows",
        "windows, words in an eighth": "/windows?q=refactor",
        "a window": f"/windows/{window}",
        "engines": "/engines",
        "upstreams": "/upstreams",
        "context": "/context",
        "results": "/results",
        "audit": "/audit",
        "keys and limits": "/keys",
        "audit of one window": f"/audit?window={window}",
        "doctor, before an examination": "/doctor",
        "nothing": "/nothing",
    }


async def measured(url: str, pids: Sequence[int], pages: dict[str, str], rounds: int) -> list[PageFigures]:
    """Ask a gateway for each page over one connection. Further pages of the lists are found by their links."""
    time_of = Stopwatch(rounds, pids)
    figures = []
    limits = httpx2.Limits(max_keepalive_connections=1)
    async with httpx2.AsyncClient(limits=limits, timeout=60) as browser:
        for name, path in pages.items():
            address = f"{url}/console{path}"
            figures.append(await _page(browser, time_of, name, address))
            if name in {"conversations", "windows", "windows, words in an eighth"}:
                further = re.search(r'rel="next" href="/console([^"]+)"', (await browser.get(address)).text)
                assert further is not None, f"{name} has one page only"
                figures.append(
                    await _page(
                        browser, time_of, f"{name}, the second page", f"{url}/console{unescape(further[1])}"
                    )
                )
    return figures


async def _page(browser: httpx2.AsyncClient, time_of: Stopwatch, name: str, address: str) -> PageFigures:
    size = 0

    async def ask() -> None:
        nonlocal size
        answer = await browser.get(address)
        if answer.status_code != (404 if address.endswith("/nothing") else 200):
            raise RuntimeError(f"{name}: {answer.status_code} {answer.text[:200]}")
        size = answer.num_bytes_downloaded

    return PageFigures(await time_of(name, ask), size)
