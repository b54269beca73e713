"""The protocol's reference servers behind the gateway: nothing of what they offer is lost on the way."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from mcp_types import EmbeddedResource, ImageContent, ResourceLink, TextContent, TextResourceContents

from cwm.domain.upstream import UpstreamSpec
from cwm.services.upstreams.link import LinkState
from tests.adapters.upstream.programs import processes_with
from tests.eventually import eventually
from tests.node.programs import Programs, environment
from tests.transport.mcp.gateway import LEGACY, Agent, Gateway, fastmcp_agent, gateway

pytestmark = pytest.mark.slow

TRANSPORTS = pytest.mark.parametrize("transport", ["stdio", "http"])


def spec(name: str, line: tuple[str, ...], **variables: str) -> UpstreamSpec:
    path = environment()["PATH"]
    return UpstreamSpec(name, command=line, env={"PATH": path, **variables}, connect_seconds=60)


@asynccontextmanager
async def everything(programs: Programs, transport: str) -> AsyncIterator[tuple[UpstreamSpec, Any]]:
    """The upstream as configured, and a client's way to it without a gateway."""
    if transport == "stdio":
        line = programs.everything()
        direct: Any = StdioTransport(line[0], list(line[1:]), env=environment(), keep_alive=False)
        yield spec("all", line, MARKER=uuid4().hex), direct
    else:
        async with programs.everything_over_http() as served:
            direct = StreamableHttpTransport(served.url)
            yield UpstreamSpec("all", url=served.url, connect_seconds=60), direct


@asynccontextmanager
async def fronted(folder: Path, era: str, *specs: UpstreamSpec) -> AsyncIterator[tuple[Agent, Gateway]]:
    async with gateway(folder, upstreams=specs) as running, fastmcp_agent(running.url, era) as agent:
        yield agent, running


def plain(model: Any) -> Any:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def without_names(listed: list[Any], named: str) -> list[Any]:
    return [{k: v for k, v in plain(each).items() if k not in {"name", named}} for each in listed]


def ours(listed: list[Any]) -> list[Any]:
    return [each for each in listed if each.name.startswith("all_")]


@TRANSPORTS
async def test_everything_it_offers_appears_as_it_spells_it(
    tmp_path: Path, era: str, programs: Programs, transport: str
) -> None:
    async with everything(programs, transport) as (upstream, direct):
        async with Client(direct, mode=LEGACY) as own:
            own_tools = {t.name: plain(t) for t in await own.list_tools()}
            own_resources = without_names(await own.list_resources(), "uri")
            own_templates = without_names(await own.list_resource_templates(), "uriTemplate")
            own_prompts = without_names(await own.list_prompts(), "name")
        async with fronted(tmp_path, era, upstream) as (agent, _):
            shown = {t.name.removeprefix("all_"): plain(t) for t in ours(await agent.client.list_tools())}
            # What it offers only to clients that can be asked back cannot be offered here.
            assert {"echo", "get-sum", "get-tiny-image", "get-annotated-message"} <= shown.keys()
            for name, tool in shown.items():
                expected = {**own_tools[name], "name": f"all_{name}"}
                # The later protocol has no such field.
                tool.pop("execution", None), expected.pop("execution", None)
                if "agent_session" in tool["inputSchema"].get("properties", {}):
                    del tool["inputSchema"]["properties"]["agent_session"]
                assert tool | {"inputSchema": 0} == expected | {"inputSchema": 0}
                assert tool["inputSchema"].get("properties", {}) == expected["inputSchema"].get(
                    "properties", {}
                )
            assert without_names(ours(await agent.client.list_resources()), "uri") == own_resources
            templates = ours(await agent.client.list_resource_templates())
            assert without_names(templates, "uriTemplate") == own_templates
            assert without_names(ours(await agent.client.list_prompts()), "name") == own_prompts


@TRANSPORTS
async def test_results_arrive_unchanged_and_their_resources_can_be_read(
    tmp_path: Path, era: str, programs: Programs, transport: str
) -> None:
    async with everything(programs, transport) as (upstream, direct):
        asked: list[tuple[str, dict[str, Any]]] = [
            ("echo", {"message": "hi"}),
            ("get-sum", {"a": 2, "b": 3}),
            ("get-tiny-image", {}),
            ("get-annotated-message", {"messageType": "error", "includeImage": True}),
            ("get-structured-content", {"location": "Chicago"}),
        ]
        async with Client(direct, mode=LEGACY) as own:
            expected = [plain(await own.call_tool_mcp(name, arguments)) for name, arguments in asked]
        async with fronted(tmp_path, era, upstream) as (agent, _):
            client = agent.client
            results = [await client.call_tool_mcp(f"all_{name}", arguments) for name, arguments in asked]
            assert [plain(each) | {"_meta": 0} for each in results] == [e | {"_meta": 0} for e in expected]
            assert any(isinstance(content, ImageContent) for content in results[2].content)

            linked = await client.call_tool_mcp("all_get-resource-links", {"count": 3})
            links = [content for content in linked.content if isinstance(content, ResourceLink)]
            assert len(links) == 3
            for link in links:
                assert "://all/" in str(link.uri)
                assert str((await client.read_resource(link.uri))[0].uri) == str(link.uri)

            reference = await client.call_tool_mcp(
                "all_get-resource-reference", {"resourceType": "Text", "resourceId": 1}
            )
            embedded = next(c for c in reference.content if isinstance(c, EmbeddedResource))
            read = (await client.read_resource(embedded.resource.uri))[0]
            assert isinstance(read, TextResourceContents)
            assert str(read.uri) == str(embedded.resource.uri)

            prompt = await client.get_prompt("all_args-prompt", {"city": "Bern", "state": "BE"})
            content = prompt.messages[0].content
            assert isinstance(content, TextContent)
            assert "Bern" in content.text


@TRANSPORTS
async def test_a_long_operation_tells_its_progress_and_ends_when_the_client_cancels_it(
    tmp_path: Path, era: str, programs: Programs, transport: str
) -> None:
    told = list[float]()
    began = asyncio.Event()

    async def heard(progress: float, _: float | None, __: str | None) -> None:
        told.append(progress)
        began.set()

    async with (
        everything(programs, transport) as (upstream, _),
        fronted(tmp_path, era, upstream) as (agent, running),
    ):
        name = "all_trigger-long-running-operation"
        short = {"duration": 0.4, "steps": 4}
        result = await agent.client.call_tool_mcp(name, short, progress_handler=heard)
        assert not result.is_error
        assert told == [1, 2, 3, 4]
        began.clear()
        endless = agent.client.call_tool_mcp(name, {"duration": 600, "steps": 6000}, progress_handler=heard)
        calling = asyncio.create_task(endless)
        await began.wait()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        link = running.parts.agent_side.upstreams._links["all"]
        await eventually(lambda: link._busy == 0)
        assert (await agent.call("all_echo", {"message": "still"})).text == "Echo: still"


async def test_a_program_killed_within_a_call_and_between_calls_is_started_again(
    tmp_path: Path, era: str, programs: Programs
) -> None:
    marker = uuid4().hex
    upstream = spec("all", programs.everything(), MARKER=marker)
    began = asyncio.Event()

    async def heard(step: float, *_: Any) -> None:
        # Later steps of a run that was killed may still be on their way.
        if step == 1:
            began.set()

    async with fronted(tmp_path, era, upstream) as (agent, _):
        endless = {"duration": 600, "steps": 6000}
        assert (await agent.call("all_echo", {"message": "1"})).text == "Echo: 1"
        call = agent.client.call_tool_mcp(
            "all_trigger-long-running-operation", endless, progress_handler=heard
        )
        calling = asyncio.create_task(call)
        await began.wait()
        for pid in processes_with(marker):
            os.kill(pid, signal.SIGKILL)
        # It says that it may be repeated, so it begins again, in another process, until that is killed as well.
        began.clear()
        await began.wait()
        for pid in processes_with(marker):
            os.kill(pid, signal.SIGKILL)
        cut_off = await calling
        assert cut_off.is_error
        assert isinstance(cut_off.content[0], TextContent)
        assert json.loads(cut_off.content[0].text)["code"] == "CWM-5003"
        await eventually(lambda: len(processes_with(marker)) >= 1)
        assert await echoed(agent, "2") == "Echo: 2"
        for pid in processes_with(marker):
            os.kill(pid, signal.SIGKILL)
        assert await echoed(agent, "3") == "Echo: 3"
    assert processes_with(marker) == []


async def test_a_server_killed_within_a_call_and_between_calls_is_found_again(
    tmp_path: Path, era: str, programs: Programs
) -> None:
    began = asyncio.Event()

    async def heard(*_: Any) -> None:
        began.set()

    async with programs.everything_over_http() as served:
        port = int(served.url.rpartition(":")[2].partition("/")[0])
        upstream = UpstreamSpec("all", url=served.url, connect_seconds=60)
        async with fronted(tmp_path, era, upstream) as (agent, running):
            assert (await agent.call("all_echo", {"message": "1"})).text == "Echo: 1"
            call = agent.client.call_tool_mcp(
                "all_trigger-long-running-operation",
                {"duration": 600, "steps": 6000},
                progress_handler=heard,
            )
            calling = asyncio.create_task(call)
            await began.wait()
            served.process.kill()
            await served.process.wait()
            cut_off = await calling
            assert cut_off.is_error
            link = running.parts.agent_side.upstreams._links["all"]
            await eventually(lambda: link.state is LinkState.AWAY)
            error = (await agent.call("all_echo", {"message": "2"})).error
            assert error["code"] == "CWM-5003"
            async with programs.everything_over_http(port):
                await eventually(lambda: link.state is LinkState.READY)
                assert await echoed(agent, "3") == "Echo: 3"


async def test_files_are_read_and_written_where_it_is_allowed(
    tmp_path: Path, era: str, programs: Programs
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    async with fronted(tmp_path, era, spec("files", programs.filesystem(root))) as (agent, _):
        tools = {tool.name: tool for tool in await agent.client.list_tools()}
        assert tools["files_read_text_file"].annotations.read_only_hint is True
        written = await agent.call("files_write_file", {"path": str(root / "a.txt"), "content": "hello"})
        assert not written.is_error
        assert (root / "a.txt").read_text() == "hello"
        assert (await agent.call("files_read_text_file", {"path": str(root / "a.txt")})).text == "hello"
        refused = await agent.call("files_read_text_file", {"path": "/etc/passwd"})
        assert refused.is_error
        assert "denied" in refused.text


async def test_a_graph_is_remembered(tmp_path: Path, era: str, programs: Programs) -> None:
    graph = tmp_path / "graph.jsonl"
    upstream = spec("memory", programs.memory(), MEMORY_FILE_PATH=str(graph))
    async with fronted(tmp_path, era, upstream) as (agent, _):
        ada = {"name": "Ada", "entityType": "person", "observations": ["wrote the first program"]}
        created = await agent.call("memory_create_entities", {"entities": [ada]})
        assert created.value == {"entities": [ada]}
        assert "Ada" in graph.read_text()
        found = await agent.call("memory_search_nodes", {"query": "program"})
        assert found.value["entities"] == [ada]


async def echoed(agent: Agent, message: str) -> str:
    """Echo says that it may be repeated or not as it likes; a killed program may be noticed by the first."""
    async with asyncio.timeout(60):
        while True:
            answer = await agent.call("all_echo", {"message": message})
            if not answer.is_error:
                return answer.text
            assert answer.error["code"] in {"CWM-5003", "CWM-5004"}
            await asyncio.sleep(0.05)
