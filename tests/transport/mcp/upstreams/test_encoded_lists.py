"""The list of an upstream with many tools is made once for what it offers, not for each client that asks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastmcp import FastMCP
from fastmcp.tools import Tool
from mcp_types.methods import serialize_server_result

from cwm.domain.upstream import UpstreamSpec
from cwm.transport.mcp.upstreams import encoded
from tests.eventually import eventually
from tests.transport.mcp.gateway import gateway
from tests.transport.mcp.upstream_hosts import hosted
from tests.transport.mcp.wire import Wire, wired

pytestmark = pytest.mark.slow

_MANY = 200


def offering_many(server: FastMCP[Any]) -> None:
    for number in range(_MANY):

        def tool(text: str = "é", count: int = 1) -> str:
            return text * count

        server.add_tool(Tool.from_function(tool, name=f"tool_{number}", description='A "useful" é tool.'))


async def listed(wire: Wire, era: str, method: str = "tools/list") -> Any:
    answer = (await wire.ask_as(era, method, {})).raise_for_status()
    text = answer.text
    if "content-length" in answer.headers:
        assert int(answer.headers["content-length"]) == len(answer.content)
    return json.loads(text.partition("data: ")[2] if text.startswith("event:") else text)["result"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_list_is_checked_and_encoded_once_for_all_who_ask(
    tmp_path: Path, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[int] = []

    def counted(method: str, version: str, data: Any) -> Any:
        checked.append(len(data["tools"]))
        return serialize_server_result(method, version, data)

    async with hosted(legacy=True, extend=offering_many) as host:
        spec = UpstreamSpec("many", url=host.url, stateless=True)
        async with gateway(tmp_path, upstreams=(spec,)) as running, wired(running.url) as wire:
            await eventually(lambda: running.parts.agent_side.upstreams.health()[0].tools is not None)
            monkeypatch.setattr(encoded, "serialize_server_result", counted)
            first = await listed(wire, era)
            assert sum(checked) >= _MANY
            checked.clear()
            again = [await listed(wire, era) for _ in range(3)]

    assert checked == []
    assert all(each["tools"] == first["tools"] for each in again)
    names = [tool["name"] for tool in first["tools"]]
    assert {f"many_tool_{number}" for number in range(_MANY)} <= set(names)
    assert not [name for name in names if name.startswith("cwm-")]
    (one,) = (tool for tool in first["tools"] if tool["name"] == "many_tool_7")
    assert one["description"] == 'A "useful" é tool.'
    assert one["inputSchema"]["properties"].keys() == {"text", "count"}


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("method", ["resources/list", "resources/templates/list", "prompts/list"])
async def test_other_lists_have_what_the_upstream_offers_and_no_placeholder(
    tmp_path: Path, era: str, method: str
) -> None:
    def offer(server: FastMCP[Any]) -> None:
        server.resource("file:///extra")(lambda: "text")
        server.resource("file:///extra/{name}", name="extra_template")(lambda name: name)
        server.prompt(name="extra_prompt")(lambda: "text")

    async with hosted(legacy=True, extend=offer) as host:
        spec = UpstreamSpec("many", url=host.url, stateless=True)
        async with gateway(tmp_path, upstreams=(spec,)) as running, wired(running.url) as wire:
            await eventually(lambda: running.parts.agent_side.upstreams.health()[0].tools is not None)
            text = json.dumps(await listed(wire, era, method))
    assert "extra" in text
    assert encoded._NAME not in text
