"""Answers like those of web APIs, generated: the same for the same size, and nobody's data."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from cwm_bench.harness import token_corpus

_BEGAN: Final = datetime(2026, 3, 1, tzinfo=UTC)
_LABELS: Final = ("bug", "enhancement", "documentation", "good first issue", "regression", "needs triage")
_LOGINS: Final = ("octavia", "mkrause", "lin-wei", "tdubois", "asha-r", "jonas42", "m-sato")
_HOSTS: Final = ("docs.example.org", "blog.example.net", "wiki.example.com", "news.example.org")
_EXCERPT: Final = 2_400
_SEARCHED_CHARS: Final = 400_000


def issues(kilobytes: int) -> str:
    """The issues of a repository as GitHub's REST API lists them."""
    chosen = random.Random("issues")  # noqa: S311 - repeatable, not secret
    prose = token_corpus.text("prose", _SEARCHED_CHARS, 31)
    return json.dumps(_filled(kilobytes, lambda number: _issue(chosen, prose, number)), ensure_ascii=False)


def series(kilobytes: int) -> dict[str, Any]:
    """A time series as monitoring APIs answer a range query."""
    chosen = random.Random("series")  # noqa: S311 - repeatable, not secret
    return {
        "status": "success",
        "metric": {
            "__name__": "http_request_duration_seconds",
            "job": "gateway",
            "instance": "10.0.3.17:9090",
        },
        "step_seconds": 15,
        "points": _filled(kilobytes, lambda number: _point(chosen, number)),
    }


def search(kilobytes: int) -> str:
    """One page of search results, each with the text that was found."""
    chosen = random.Random("search")  # noqa: S311 - repeatable, not secret
    text = token_corpus.text("prose", _SEARCHED_CHARS, 32) + token_corpus.text("cjk", _SEARCHED_CHARS, 32)
    found = _filled(kilobytes, lambda number: _hit(chosen, text, number))
    page = {
        "query": "assignment expression",
        "page": 1,
        "per_page": len(found),
        "total": 18_231,
        "items": found,
    }
    return json.dumps(page, ensure_ascii=False, indent=1)


RESPONSES: Final[Mapping[str, Callable[[int], Any]]] = MappingProxyType(
    {"issues": issues, "series": series, "search": search}
)


def _filled(kilobytes: int, make: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    size = 0
    while size < kilobytes * 1000:
        made.append(make(len(made)))
        size += len(json.dumps(made[-1], ensure_ascii=False).encode())
    return made


def _issue(chosen: random.Random, prose: str, number: int) -> dict[str, Any]:
    api = f"https://api.example.org/repos/acme/widgets/issues/{9000 - number}"
    opened = _BEGAN - timedelta(minutes=number * 311)
    login = chosen.choice(_LOGINS)
    return {
        "url": api,
        "html_url": api.replace("api.", "").replace("/repos", ""),
        "comments_url": f"{api}/comments",
        "id": 2_100_000_000 - chosen.randrange(10_000_000),
        "node_id": f"I_kwDO{chosen.getrandbits(80):020X}",
        "number": 9000 - number,
        "title": _excerpt(chosen, prose, 70).replace("\n", " "),
        "user": {
            "login": login,
            "id": 1000 + _LOGINS.index(login),
            "avatar_url": f"https://avatars.example.org/u/{1000 + _LOGINS.index(login)}?v=4",
            "type": "User",
            "site_admin": False,
        },
        "labels": [
            {"id": 7 * len(name), "name": name, "color": f"{chosen.getrandbits(24):06x}", "default": False}
            for name in chosen.sample(_LABELS, chosen.randrange(3))
        ],
        "state": "open" if chosen.random() < 0.7 else "closed",
        "locked": False,
        "assignee": None,
        "comments": chosen.randrange(30),
        "created_at": opened.isoformat(),
        "updated_at": (opened + timedelta(days=chosen.randrange(40))).isoformat(),
        "closed_at": None,
        "author_association": "NONE",
        "body": _excerpt(chosen, prose, chosen.randrange(200, _EXCERPT)),
        "reactions": {"url": f"{api}/reactions", "total_count": chosen.randrange(4), "+1": 0, "-1": 0},
    }


def _point(chosen: random.Random, number: int) -> dict[str, Any]:
    return {
        "time": (_BEGAN + timedelta(seconds=15 * number)).isoformat(),
        "value": round(abs(chosen.gauss(0.18, 0.05)), 6),
        "count": chosen.randrange(200, 4_000),
    }


def _hit(chosen: random.Random, text: str, number: int) -> dict[str, Any]:
    body = _excerpt(chosen, text, chosen.randrange(600, 3 * _EXCERPT))
    return {
        "rank": number + 1,
        "title": _excerpt(chosen, text, 60).replace("\n", " "),
        "url": f"https://{chosen.choice(_HOSTS)}/articles/{chosen.getrandbits(40):010x}",
        "score": round(40 / (number + 1) + chosen.random(), 4),
        "published": (_BEGAN - timedelta(hours=chosen.randrange(30_000))).date().isoformat(),
        "snippet": body[:160],
        "text": body,
    }


def _excerpt(chosen: random.Random, text: str, length: int) -> str:
    start = chosen.randrange(len(text) - length)
    return text[start : start + length].strip()
