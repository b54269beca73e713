"""Answers of upstreams that agents share, without a gateway around them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from types import SimpleNamespace
from typing import cast

import pytest

from cwm.adapters.memory.agent_sessions import InProcessAgentSessions
from cwm.domain.tool_policy import CachePolicy, ToolPolicies, ToolPolicy
from cwm.domain.upstream import Offer
from cwm.services.agents.context_manager import ContextManager
from cwm.services.upstreams.shared_answers import SharedAnswers, UpstreamAnswer
from cwm.services.upstreams.upstreams import CallerOf, Upstreams
from tests.eventually import eventually
from tests.services.context_of import ANN, replica

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("anyio_backend")]

CALLER, OTHER = (CallerOf(ContextManager(ANN, each, InProcessAgentSessions())) for each in ("s1", "s2"))
READING = Offer("files", "read_text_file", {"annotations": {"readOnlyHint": True}})
WRITING = Offer("files", "write_file", {})
TOOL = "files_read_text_file"


def sharing(pattern: str) -> ToolPolicies:
    return ToolPolicies(by_name={pattern: ToolPolicy(cache=CachePolicy(60))})


@pytest.fixture
async def replicas(sqlite_url: str) -> AsyncIterator[list[SharedAnswers]]:
    roster = SimpleNamespace(at_other=lambda _: None)
    upstreams = cast("Upstreams", SimpleNamespace(knows_callers=lambda _: False, roster=roster))
    async with replica(sqlite_url, sqlite_url) as one, replica(sqlite_url, sqlite_url) as other:
        yield [SharedAnswers(each.context, upstreams, sharing(TOOL)) for each in (one, other)]


@pytest.fixture
def answers(replicas: list[SharedAnswers]) -> SharedAnswers:
    return replicas[0]


@pytest.mark.parametrize(
    "pattern",
    ["*read_text_file", "f*text_file", "files[_]read_text_file", "?iles_*", "*", "files_read*", TOOL],
)
async def test_a_write_ends_what_is_shared_under_any_pattern(answers: SharedAnswers, pattern: str) -> None:
    answers.policies = sharing(pattern)
    text = "before"

    async def ask() -> UpstreamAnswer:
        return {"content": text}

    async def read() -> UpstreamAnswer:
        return (await answers.call(CALLER, READING, answers.policies.of(TOOL).cache, {}, ask)).answer

    assert await read() == {"content": "before"}
    text = "after"
    assert await read() == {"content": "before"}
    await answers.call(CALLER, WRITING, answers.policies.of("files_write_file").cache, {}, ask)
    assert await read() == {"content": "after"}


async def test_an_answer_is_given_again_as_the_upstream_spelled_it(answers: SharedAnswers) -> None:
    answer = {"structuredContent": {"z": 1.0, "a": {"é": [1e3, None], "b": "🙂"}}, "content": []}

    async def ask() -> UpstreamAnswer:
        return answer

    given = [
        (await answers.call(CALLER, READING, answers.policies.of(TOOL).cache, {}, ask)) for _ in range(2)
    ]
    assert [one.age_seconds is None for one in given] == [True, False]
    assert [json.dumps(one.answer) for one in given] == [json.dumps(answer)] * 2


async def test_a_tool_that_says_that_it_answers_otherwise_each_time_is_asked_each_time_and_ends_nothing(
    answers: SharedAnswers,
) -> None:
    answers.policies, asked = sharing("files_*"), 0

    async def ask() -> UpstreamAnswer:
        nonlocal asked
        asked += 1
        return {"content": asked}

    hints = {"readOnlyHint": True, "idempotentHint": False}
    drawing = Offer("files", "draw", {"annotations": hints})
    read = await answers.call(CALLER, READING, answers.policies.of(TOOL).cache, {}, ask)
    drawn = [
        (await answers.call(CALLER, drawing, answers.policies.of("files_draw").cache, {}, ask)).answer[
            "content"
        ]
        for _ in range(2)
    ]
    assert drawn == [2, 3]
    again = await answers.call(CALLER, READING, answers.policies.of(TOOL).cache, {}, ask)
    assert (again.answer, again.age_seconds is None) == (read.answer, False)


@pytest.mark.parametrize("pattern", ["file_*", "filesystem_*", "read_text_file", "files", "other*"])
async def test_only_the_first_write_ends_an_epoch_where_no_pattern_can_name_the_upstream(
    answers: SharedAnswers, pattern: str
) -> None:
    answers.policies = sharing(pattern)

    async def ask() -> UpstreamAnswer:
        return {}

    epochs = []
    for _ in range(3):
        await answers.call(CALLER, WRITING, answers.policies.of("files_write_file").cache, {}, ask)
        epochs.append(await answers._epoch("files"))
    assert epochs == [1, 1, 1]


async def test_what_was_written_while_nothing_was_shared_ends_what_was_kept_before(
    replicas: list[SharedAnswers],
) -> None:
    here, there = replicas
    text = "before"

    async def ask() -> UpstreamAnswer:
        return {"content": text}

    async def read(by: SharedAnswers) -> UpstreamAnswer:
        return (await by.call(CALLER, READING, by.policies.of(TOOL).cache, {}, ask)).answer

    for text in ("first", "second"):
        for one in replicas:
            await one.configure(sharing(TOOL))
        kept = await read(there)
        assert await read(here) == kept == {"content": text}
        for one in replicas:
            await one.configure(ToolPolicies())
        await here.call(CALLER, WRITING, here.policies.of("files_write_file").cache, {}, ask)
    text = "third"
    for one in replicas:
        await one.configure(sharing(TOOL))
    assert await read(there) == {"content": "third"}


async def test_what_gateways_wrote_that_were_started_to_share_nothing_ends_what_was_kept_before(
    replicas: list[SharedAnswers],
) -> None:
    sharing_one, other = replicas
    other.policies = ToolPolicies()
    text = "before"

    async def ask() -> UpstreamAnswer:
        return {"content": text}

    async def read() -> UpstreamAnswer:
        return (await sharing_one.call(CALLER, READING, sharing_one.policies.of(TOOL).cache, {}, ask)).answer

    assert await read() == {"content": "before"}
    await other.call(CALLER, WRITING, other.policies.of("files_write_file").cache, {}, ask)
    text = "after"
    assert await read() == {"content": "after"}


@pytest.mark.parametrize("then", [sharing(TOOL), ToolPolicies()])
async def test_a_write_ends_the_epoch_that_is_when_it_has_ended_whatever_was_shared_when_it_began(
    replicas: list[SharedAnswers], then: ToolPolicies
) -> None:
    writer, other = replicas
    writer.policies = ToolPolicies() if then.by_name else sharing(TOOL)
    began, go_on = asyncio.Event(), asyncio.Event()
    text = "before"

    async def ask() -> UpstreamAnswer:
        return {"content": text}

    async def write() -> UpstreamAnswer:
        began.set()
        await go_on.wait()
        return {}

    async with asyncio.timeout(10):
        writing = asyncio.create_task(
            writer.call(CALLER, WRITING, writer.policies.of("files_write_file").cache, {}, write)
        )
        await began.wait()
        await writer.configure(then)
        await other.call(CALLER, READING, other.policies.of(TOOL).cache, {}, ask)
        go_on.set()
        await writing
    text = "after"
    assert (await other.call(CALLER, READING, other.policies.of(TOOL).cache, {}, ask)).answer == {
        "content": "after"
    }


async def test_a_call_that_is_being_given_up_is_not_joined(answers: SharedAnswers) -> None:
    asked, giving_up, given_up = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def ask_for_long() -> UpstreamAnswer:
        asked.set()
        try:
            return await asyncio.Future[UpstreamAnswer]()
        finally:
            giving_up.set()
            await given_up.wait()

    async def ask() -> UpstreamAnswer:
        return {"content": "asked anew"}

    async with asyncio.timeout(10):
        first = asyncio.create_task(
            answers.call(CALLER, READING, answers.policies.of(TOOL).cache, {}, ask_for_long)
        )
        await asked.wait()
        first.cancel()
        await giving_up.wait()
        second = asyncio.create_task(answers.call(CALLER, READING, answers.policies.of(TOOL).cache, {}, ask))
        try:
            done, _ = await asyncio.wait([second], timeout=5)
        finally:
            given_up.set()
        with suppress(asyncio.CancelledError):
            await first
        assert done == {second}
        assert (await second).answer == {"content": "asked anew"}


async def test_who_waits_for_an_answer_that_another_asked_for_is_busy(answers: SharedAnswers) -> None:
    go_on = asyncio.Event()

    async def ask() -> UpstreamAnswer:
        await go_on.wait()
        return {}

    first = asyncio.create_task(answers.call(CALLER, READING, answers.policies.of(TOOL).cache, {}, ask))
    second = asyncio.create_task(answers.call(OTHER, READING, answers.policies.of(TOOL).cache, {}, ask))
    await eventually(lambda: [one.waiting for one in answers._asking.values()] == [2])
    assert not OTHER.agent.idle
    go_on.set()
    await asyncio.gather(first, second)
    assert OTHER.agent.idle


async def test_a_call_that_was_given_up_takes_nothing_from_the_one_that_is_joined_now(
    answers: SharedAnswers,
) -> None:
    asked, given_up = asyncio.Event(), asyncio.Event()
    asked_anew, go_on = asyncio.Event(), asyncio.Event()
    calls = 0

    async def ask_for_long() -> UpstreamAnswer:
        asked.set()
        try:
            return await asyncio.Future[UpstreamAnswer]()
        finally:
            await given_up.wait()

    async def ask() -> UpstreamAnswer:
        nonlocal calls
        calls += 1
        asked_anew.set()
        await go_on.wait()
        return {}

    async with asyncio.timeout(10):
        first = asyncio.create_task(
            answers.call(CALLER, READING, answers.policies.of(TOOL).cache, {}, ask_for_long)
        )
        await asked.wait()
        (ending,) = (asking.task for asking in answers._asking.values())
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first
        second = asyncio.create_task(answers.call(CALLER, READING, answers.policies.of(TOOL).cache, {}, ask))
        try:
            await asyncio.wait([asyncio.create_task(asked_anew.wait())], timeout=5)
        finally:
            given_up.set()
        await asyncio.wait([ending])
        third = asyncio.create_task(answers.call(CALLER, READING, answers.policies.of(TOOL).cache, {}, ask))
        await eventually(lambda: [one.waiting for one in answers._asking.values()] == [2])
        go_on.set()
        await asyncio.gather(second, third)
    assert calls == 1
