"""How long previews of large results take, and which share of the tokens they deliver."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, Final

from cwm.domain.preview import Preview
from cwm.domain.tool_policy import PreviewKind, ToolPolicy
from cwm.ports.token_counter import TokenCounter
from cwm.services.results.preview.result import preview_result
from cwm_bench.harness.figures import Section, median, ratio
from cwm_bench.harness.responses import filled

_KB: Final = 300
_WORDS: Final = (
    "each",
    "build",
    "of",
    "our",
    "service",
    "takes",
    "a",
    "while",
    "as",
    "tests",
    "start",
    "real",
    "servers",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A 300 KB tool result; ``figure`` is the name of its median in the summary."""

    name: str
    figure: str
    policy: ToolPolicy
    text: str
    structured: Any = None
    schema: dict[str, Any] | None = None


def measure(counter: TokenCounter, rounds: int) -> tuple[Section, dict[str, Any]]:
    """Medians in milliseconds, counting included; the goal is 20."""
    section = Section(
        f"previews of results of {_KB} KB",
        ("result", "KB", "ms", "tokens", "of all"),
        note=f"medians of {rounds} rounds, with counting the preview; the goal is 20 ms; of all: preview tokens / tokens of the result",
    )
    summary: dict[str, Any] = {}
    for case in cases():
        milliseconds, preview = _timed(case, counter, rounds)
        share = ratio(preview.account.tokens, counter.count(case.text))
        section.rows.append(
            (case.name, round(len(case.text.encode()) / 1000), milliseconds, preview.account.tokens, share)
        )
        summary[case.figure] = milliseconds
    return section, summary


def cases() -> list[Case]:
    records = filled(_KB, _record)
    listing = json.dumps(records)
    story = " ".join(filled(_KB, _sentence))
    log = "\n".join(
        filled(
            _KB,
            lambda n: f"2026-11-21T10:{n // 60 % 60:02}:{n % 60:02}Z INFO worker-{n % 8} took {n % 90} ms",
        )
    )
    fields = ToolPolicy(fields=("id", "title", "user.login"))
    schema = {"required": ["result"], "properties": {"result": {"items": {"required": ["id", "body"]}}}}
    return [
        Case("list of records", "preview_page_ms", ToolPolicy(), listing),
        Case(
            "the same, by its schema", "preview_valid_ms", ToolPolicy(), listing, {"result": records}, schema
        ),
        Case("the same, three fields", "preview_projection_ms", fields, listing),
        Case("prose", "preview_extraction_ms", ToolPolicy(keywords=("sentence 900",)), story),
        Case("log", "preview_lines_ms", ToolPolicy(preview=PreviewKind.TAIL), log),
    ]


def _timed(case: Case, counter: TokenCounter, rounds: int) -> tuple[float, Preview]:
    milliseconds = []
    content = [{"type": "text", "text": case.text}]
    for _ in range(rounds + 1):
        began = time.perf_counter()
        preview = preview_result(content, case.structured, case.policy, counter, case.schema)
        milliseconds.append((time.perf_counter() - began) * 1000)
    return median(milliseconds[1:]), preview  # the first round loads libraries


def _sentence(number: int) -> str:
    words = (_WORDS[(number * step) % len(_WORDS)] for step in range(1, 12))
    return f"In sentence {number} {' '.join(words)}."


def _record(number: int) -> dict[str, Any]:
    api = f"https://api.example.org/issues/{number}"
    return {
        "id": number,
        "title": _sentence(number),
        "state": "open" if number % 3 else "closed",
        "user": {"login": f"user-{number % 40}", "id": number % 40, "avatar_url": f"{api}/avatar"},
        "labels": [{"name": f"label {n}", "color": "ff0000"} for n in range(number % 5)],
        "comments_url": f"{api}/comments",
        "closed_at": None,
        "body": " ".join(_sentence(number + n) for n in range(8)),
    }
