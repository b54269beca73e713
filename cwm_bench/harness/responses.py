"""Generated answers like those of web APIs: the same for the same size, without anybody's data."""

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
    rng = random.Random("issues")  # noqa: S311 - repeatable, not secret
    prose = token_corpus.text("prose", _SEARCHED_CHARS, 31)
    return json.dumps(filled(kilobytes, lambda number: _issue(rng, prose, number)), ensure_ascii=False)


def series(kilobytes: int) -> dict[str, Any]:
    """A time series like a monitoring API's answer to a range query."""
    rng = random.Random("series")  # noqa: S311 - repeatable, not secret
    return {
        "status": "success",
        "metric": {
            "__name__": "http_request_duration_seconds",
            "job": "gateway",
            "instance": "10.0.3.17:9090",
        },
        "step_seconds": 15,
        "points": filled(kilobytes, lambda number: _point(rng, number)),
    }


def search(kilobytes: int) -> str:
    """One page of search results, each with its matching text."""
    rng = random.Random("search")  # noqa: S311 - repeatable, not secret
    text = token_corpus.text("prose", _SEARCHED_CHARS, 32) + token_corpus.text("cjk", _SEARCHED_CHARS, 32)
    hits = filled(kilobytes, lambda number: _hit(rng, text, number))
    page = {
        "query": "assignment expression",
        "page": 1,
        "per_page": len(hits),
        "total": 18_231,
        "items": hits,
    }
    return json.dumps(page, ensure_ascii=False, indent=1)


RESPONSES: Final[Mapping[str, Callable[[int], Any]]] = MappingProxyType(
    {"issues": issues, "series": series, "search": search}
)


def filled(kilobytes: int, make: Callable[[int], Any]) -> list[Any]:
    """As many items as make ``kilobytes`` of JSON."""
    items: list[Any] = []
    size = 0
    while size < kilobytes * 1000:
        items.append(make(len(items)))
        size += len(json.dumps(items[-1], ensure_ascii=False).encode())
    return items


def _issue(rng: random.Random, prose: str, number: int) -> dict[str, Any]:
    api = f"https://api.example.org/repos/acme/widgets/issues/{9000 - number}"
    start = _BEGAN - timedelta(minutes=number * 311)
    login = rng.choice(_LOGINS)
    return {
        "url": api,
        "html_url": api.replace("api.", "").replace("/repos", ""),
        "comments_url": f"{api}/comments",
        "id": 2_100_000_000 - rng.randrange(10_000_000),
        "node_id": f"I_kwDO{rng.getrandbits(80):020X}",
        "number": 9000 - number,
        "title": _excerpt(rng, prose, 70).replace("\n", " "),
        "user": {
            "login": login,
            "id": 1000 + _LOGINS.index(login),
            "avatar_url": f"https://avatars.example.org/u/{1000 + _LOGINS.index(login)}?v=4",
            "type": "User",
            "site_admin": False,
        },
        "labels": [
            {"id": 7 * len(name), "name": name, "color": f"{rng.getrandbits(24):06x}", "default": False}
            for name in rng.sample(_LABELS, rng.randrange(3))
        ],
        "state": "open" if rng.random() < 0.7 else "closed",
        "locked": False,
        "assignee": None,
        "comments": rng.randrange(30),
        "created_at": start.isoformat(),
        "updated_at": (start + timedelta(days=rng.randrange(40))).isoformat(),
        "closed_at": None,
        "author_association": "NONE",
        "body": _excerpt(rng, prose, rng.randrange(200, _EXCERPT)),
        "reactions": {"url": f"{api}/reactions", "total_count": rng.randrange(4), "+1": 0, "-1": 0},
    }


def _point(rng: random.Random, number: int) -> dict[str, Any]:
    return {
        "time": (_BEGAN + timedelta(seconds=15 * number)).isoformat(),
        "value": round(abs(rng.gauss(0.18, 0.05)), 6),
        "count": rng.randrange(200, 4_000),
    }


def _hit(rng: random.Random, text: str, number: int) -> dict[str, Any]:
    body = _excerpt(rng, text, rng.randrange(600, 3 * _EXCERPT))
    return {
        "rank": number + 1,
        "title": _excerpt(rng, text, 60).replace("\n", " "),
        "url": f"https://{rng.choice(_HOSTS)}/articles/{rng.getrandbits(40):010x}",
        "score": round(40 / (number + 1) + rng.random(), 4),
        "published": (_BEGAN - timedelta(hours=rng.randrange(30_000))).date().isoformat(),
        "snippet": body[:160],
        "text": body,
    }


def _excerpt(rng: random.Random, text: str, length: int) -> str:
    start = rng.randrange(len(text) - length)
    return text[start : start + length].strip()
