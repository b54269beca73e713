"""What one agent had read through an upstream, others of its tenant are given without asking again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from cwm.domain.errors import StorageReadError, StorageWriteError
from cwm.domain.shared_context import ContextScope, Head
from cwm.domain.tool_policy import CachePolicy, SharingScope, ToolPolicies, ToolPolicy
from cwm.domain.upstream import Credentials, UpstreamSpec
from cwm.services.context.views import ContextViews
from cwm.settings import Shared
from tests.node.programs import Programs
from tests.transport.mcp.gateway import LEGACY, MODERN, Gateway, fastmcp_agent, gateway, sdk_agent
from tests.transport.mcp.upstream_hosts import Host, hosted
from tests.transport.mcp.upstreams.test_real_upstreams import spec

pytestmark = pytest.mark.slow

SHARED = "dev.cwm/shared"


def sharing(tool: str, **policy: Any) -> ToolPolicies:
    return ToolPolicies(by_name={tool: ToolPolicy(cache=CachePolicy(60, **policy))})


@asynccontextmanager
async def fronted(
    folder: Path, policies: ToolPolicies, *specs: UpstreamSpec, **options: Any
) -> AsyncIterator[Gateway]:
    async with gateway(folder, upstreams=specs, **options) as running:
        await share(running, policies)
        yield running


async def share(running: Gateway, policies: ToolPolicies) -> None:
    delivery = running.parts.services.delivery
    delivery.budgets = replace(delivery.budgets, policies=policies)
    await running.parts.agent_side.answers.configure(policies)


class Away:
    """An index whose store cannot be reached."""

    async def head(self, scope: ContextScope) -> Head:
        raise StorageReadError("It is away.")

    async def write(self, *_: Any, **__: Any) -> None:
        raise StorageWriteError("It is away.")


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with hosted(legacy=False) as one:
        yield one


def counted(running: Gateway, what: str) -> float:
    named = {"event": f"upstream_answer_{what}"}
    return sum(
        s.value for s in running.parts.base.meter.samples() if s.labels == named and "created" not in s.name
    )


async def test_three_agents_that_read_package_json_cost_one_call(tmp_path: Path, programs: Programs) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "package.json").write_text(json.dumps({"name": "demo", "dependencies": {"left-pad": "1"}}))
    files = spec("files", programs.filesystem(project))
    read = {"path": str(project / "package.json")}
    async with (
        fronted(tmp_path, sharing("files_read_text_file"), files) as running,
        fastmcp_agent(running.url, LEGACY, "acme") as one,
        sdk_agent(running.url, LEGACY, "acme") as two,
        fastmcp_agent(running.url, MODERN, "acme") as three,
    ):
        answers = [await agent.call("files_read_text_file", read) for agent in (one, two, three)]
        assert {answer.text for answer in answers} == {(project / "package.json").read_text()}
        assert [SHARED in answer.meta for answer in answers] == [False, True, True]
        assert answers[2].meta[SHARED]["age_seconds"] >= 0
        assert (counted(running, "asked"), counted(running, "shared")) == (1, 2)

        await one.call("files_write_file", {**read, "content": "changed"})
        answers = [await agent.call("files_read_text_file", read) for agent in (two, three)]
        assert [answer.text for answer in answers] == ["changed", "changed"]
        assert counted(running, "asked") == 2


async def test_agents_that_ask_at_once_wait_for_one_answer(tmp_path: Path, host: Host) -> None:
    async with (
        fronted(tmp_path, sharing("notes_look"), host.spec("notes")) as running,
        fastmcp_agent(running.url, MODERN, "acme") as agent,
    ):
        calls = [asyncio.create_task(agent.call("notes_look")) for _ in range(5)]
        await host.seen.began.wait()
        await eventually_waiting(running, 5)
        # One that leaves, even the first, takes nothing from the others.
        calls[0].cancel()
        await eventually_waiting(running, 4)
        host.seen.go_on.set()
        answers = await asyncio.gather(*calls[1:])
        assert {answer.text for answer in answers} == {"looked"}
        assert host.seen.calls["look"] == 1


async def test_when_all_have_left_nobody_asks_on(tmp_path: Path, host: Host) -> None:
    async with (
        fronted(tmp_path, sharing("notes_look"), host.spec("notes")) as running,
        fastmcp_agent(running.url, MODERN, "acme") as agent,
    ):
        calls = [asyncio.create_task(agent.call("notes_look")) for _ in range(2)]
        await host.seen.began.wait()
        await eventually_waiting(running, 2)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await eventually_waiting(running, 0)
        assert (await agent.call("notes_look")).text == "looked"
        assert host.seen.calls["look"] == 2


async def test_only_what_the_policy_lists_and_only_reads_is_shared(tmp_path: Path, host: Host) -> None:
    policies = sharing("notes_*")
    async with (
        fronted(tmp_path, policies, host.spec("notes")) as running,
        fastmcp_agent(running.url, LEGACY, "acme") as agent,
    ):
        assert [(await agent.call("notes_count")).text for _ in range(2)] == ["1", "2"]
        assert (await agent.call("notes_fail")).is_error
        await share(running, ToolPolicies())
        for _ in range(2):
            assert SHARED not in (await agent.call("notes_echo", {"message": "hi"})).meta
        assert host.seen.calls["echo"] == 2


async def test_answers_go_by_the_arguments_that_matter(tmp_path: Path, host: Host) -> None:
    async with (
        fronted(tmp_path, sharing("notes_echo"), host.spec("notes")) as running,
        fastmcp_agent(running.url, LEGACY, "acme") as agent,
    ):
        assert [(await agent.call("notes_echo", {"message": m})).text for m in "aba"] == ["a", "b", "a"]
        assert host.seen.calls["echo"] == 2
        await share(running, sharing("notes_echo", key=("nothing",)))
        assert [(await agent.call("notes_echo", {"message": m})).text for m in "cd"] == ["c", "c"]


@pytest.mark.parametrize(
    ("policy", "fields", "calls"),
    [
        ({}, {}, {"same session": 1, "other session": 1, "other tenant": 2}),
        ({"scope": SharingScope.SESSION}, {}, {"same session": 1, "other session": 2, "other tenant": 3}),
        (
            {},
            {"credentials": Credentials.FORWARD},
            {"same session": 1, "other session": 1, "other tenant": 2},
        ),
    ],
)
async def test_answers_stay_where_they_belong(
    tmp_path: Path, host: Host, policy: dict[str, Any], fields: dict[str, Any], calls: dict[str, int]
) -> None:
    upstream = host.spec("notes", **fields)
    async with (
        fronted(tmp_path, sharing("notes_echo", **policy), upstream) as running,
        fastmcp_agent(running.url, LEGACY, "acme") as agent,
        fastmcp_agent(running.url, LEGACY, "acme") as other,
        fastmcp_agent(running.url, LEGACY, "globex") as stranger,
    ):
        await agent.call("notes_echo", {"message": "hi"})
        for who, asks in zip(calls, (agent, other, stranger), strict=True):
            await asks.call("notes_echo", {"message": "hi"})
            assert host.seen.calls["echo"] == calls[who], who


async def test_what_was_read_while_another_wrote_is_not_shared(tmp_path: Path, host: Host) -> None:
    async with (
        fronted(tmp_path, sharing("notes_look"), host.spec("notes")) as running,
        fastmcp_agent(running.url, MODERN, "acme") as agent,
    ):
        reading = asyncio.create_task(agent.call("notes_look"))
        await host.seen.began.wait()
        await agent.call("notes_count")
        host.seen.go_on.set()
        await reading
        assert SHARED not in (await agent.call("notes_look")).meta
        assert SHARED in (await agent.call("notes_look")).meta
        assert host.seen.calls["look"] == 2


async def test_replicas_share_answers_and_what_ends_them(tmp_path: Path, redis_url: str, host: Host) -> None:
    shared = Shared(shared_store_url=redis_url)
    policies = sharing("notes_echo")
    async with (
        fronted(tmp_path, policies, host.spec("notes"), shared=shared) as one,
        fronted(tmp_path, policies, host.spec("notes"), shared=shared) as other,
        fastmcp_agent(one.url, MODERN, "acme") as here,
        fastmcp_agent(other.url, MODERN, "acme") as there,
    ):
        await here.call("notes_echo", {"message": "hi"})
        assert SHARED in (await there.call("notes_echo", {"message": "hi"})).meta
        await there.call("notes_count")
        assert SHARED not in (await here.call("notes_echo", {"message": "hi"})).meta
        assert host.seen.calls["echo"] == 2


async def test_without_its_store_every_call_is_made(tmp_path: Path, host: Host) -> None:
    async with (
        fronted(tmp_path, sharing("notes_echo"), host.spec("notes")) as running,
        fastmcp_agent(running.url, MODERN, "acme") as agent,
    ):
        await agent.call("notes_echo", {"message": "hi"})
        answers = running.parts.agent_side.answers
        there = answers._context
        answers._context = replace(
            there, index=cast("Any", Away()), views=ContextViews(cast("Any", Away()), 2**20, lambda _: None)
        )
        answer = await agent.call("notes_echo", {"message": "hi"})
        assert (answer.text, SHARED in answer.meta) == ("hi", False)
        assert (await agent.call("notes_count")).text == "1"
        assert host.seen.calls["echo"] == 2
        # What was written meanwhile ends what was kept before, as soon as that can be said.
        answers._context = there
        assert SHARED not in (await agent.call("notes_echo", {"message": "hi"})).meta
        assert SHARED in (await agent.call("notes_echo", {"message": "hi"})).meta


@pytest.mark.parametrize("gone_between", [False, True])
async def test_what_another_server_of_that_name_answered_is_not_shared(
    tmp_path: Path, host: Host, gone_between: bool
) -> None:
    async with (
        hosted(legacy=False) as new,
        fronted(tmp_path, sharing("notes_echo"), host.spec("notes")) as running,
        fastmcp_agent(running.url, MODERN, "acme") as agent,
    ):
        await agent.call("notes_echo", {"message": "hi"})
        upstreams = running.parts.agent_side.upstreams
        if gone_between:
            await upstreams.configure([])
        await upstreams.configure([new.spec("notes")])
        await upstreams.roster.background.settled()
        assert SHARED not in (await agent.call("notes_echo", {"message": "hi"})).meta
        assert SHARED in (await agent.call("notes_echo", {"message": "hi"})).meta
        assert (host.seen.calls["echo"], new.seen.calls["echo"]) == (1, 1)


async def eventually_waiting(running: Gateway, count: int) -> None:
    def waiting() -> int:
        return sum(asking.waiting for asking in running.parts.agent_side.answers._asking.values())

    async with asyncio.timeout(30):
        while waiting() != count:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
