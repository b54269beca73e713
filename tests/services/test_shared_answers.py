"""Answers of upstreams that agents share, without a gateway around them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cwm.domain.tool_policy import CachePolicy, ToolPolicies, ToolPolicy
from cwm.domain.upstream import Offer
from cwm.services.shared_answers import Answer, SharedAnswers
from cwm.services.upstreams import CallerOf, Upstreams
from tests.services.context_of import ANN, replica

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("anyio_backend")]

CALLER = CallerOf(cast("Any", SimpleNamespace(principal=ANN, key="s1")))
READING = Offer("files", "read_text_file", {"annotations": {"readOnlyHint": True}})
WRITING = Offer("files", "write_file", {})
TOOL = "files_read_text_file"


def sharing(pattern: str) -> ToolPolicies:
    return ToolPolicies(by_name={pattern: ToolPolicy(cache=CachePolicy(60))})


@pytest.fixture
async def answers(sqlite_url: str) -> AsyncIterator[SharedAnswers]:
    upstreams = cast("Upstreams", SimpleNamespace(knows_callers=lambda _: False))
    async with replica(sqlite_url, sqlite_url) as one:
        yield SharedAnswers(one.context, upstreams, sharing(TOOL))


@pytest.mark.parametrize(
    "pattern",
    ["*read_text_file", "f*text_file", "files[_]read_text_file", "?iles_*", "*", "files_read*", TOOL],
)
async def test_a_write_ends_what_is_shared_under_any_pattern(answers: SharedAnswers, pattern: str) -> None:
    answers.policies = sharing(pattern)
    text = "before"

    async def ask() -> Answer:
        return {"content": text}

    async def read() -> Answer:
        return (await answers.call(CALLER, READING, TOOL, {}, ask)).answer

    assert await read() == {"content": "before"}
    text = "after"
    assert await read() == {"content": "before"}
    await answers.call(CALLER, WRITING, "files_write_file", {}, ask)
    assert await read() == {"content": "after"}


@pytest.mark.parametrize("pattern", ["file_*", "filesystem_*", "read_text_file", "files", "other*"])
async def test_a_write_ends_nothing_where_no_pattern_can_name_the_upstream(
    answers: SharedAnswers, pattern: str
) -> None:
    answers.policies = sharing(pattern)

    async def ask() -> Answer:
        return {}

    await answers.call(CALLER, WRITING, "files_write_file", {}, ask)
    assert await answers._epoch("files") == 0
