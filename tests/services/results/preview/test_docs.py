"""The examples of the manual are what the code makes of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cwm.adapters.tokens.bpe import BpeTokenCounter
from cwm.domain.preview import Preview
from cwm.domain.tool_policy import ToolPolicy
from cwm.services.results.preview.result import preview_result

MANUAL = Path(__file__).parents[4] / "docs" / "previews.md"
EXAMPLE = re.compile(r"```(json|text log) (preview_tokens=[^\n]+)\n(.*?)\n```\n\n> ([^\n]*)", re.DOTALL)
LOG = "".join(
    f"2026-11-21T10:00:{n:02} "
    + (f"INFO worker-{n % 4} took {n} ms\n" if n < 39 else "ERROR worker-3 lost its connection\n")
    for n in range(40)
)


def text() -> str:
    return MANUAL.read_text(encoding="utf-8")


def result() -> Any:
    found = re.search(r"```json result\n(.*?)\n```", text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def preview(kind: str, options: str) -> Preview:
    given = dict(option.split("=", 1) for option in options.split())
    fields = tuple(given["fields"].split(",")) if "fields" in given else ()
    policy = ToolPolicy(preview_tokens=int(given["preview_tokens"]), fields=fields)
    if kind == "json":
        return preview_result([], result(), policy, BpeTokenCounter())
    return preview_result([{"type": "text", "text": LOG}], None, policy, BpeTokenCounter())


@pytest.mark.parametrize("example", EXAMPLE.findall(text()), ids=lambda example: example[1])
def test_an_example_of_the_manual_is_true(example: tuple[str, str, str, str]) -> None:
    kind, options, shown, line = example
    made = preview(kind, options)
    assert line == made.account.line
    assert (json.loads(shown) if kind == "json" else shown) == (made.structured or made.content[0]["text"])


def test_the_manual_has_its_examples() -> None:
    assert len(EXAMPLE.findall(text())) == 4
    assert BpeTokenCounter().count(json.dumps(result())) == 430
