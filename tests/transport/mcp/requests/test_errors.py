"""How failures reach a client: coded, as results, and never with what they were about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastmcp.exceptions import ToolError
from mcp import MCPError
from structlog.testing import capture_logs

from cwm.domain.errors import InternalError, StorageReadError
from tests.adapters.vllm.fake_vllm import SPECIAL, Behaviour, fake_vllm
from tests.transport.llm.gateway import settings_for
from tests.transport.mcp.gateway import Agent, Gateway, fastmcp_agent, sdk_agent
from tests.transport.mcp.gateway import gateway as running_gateway

pytestmark = pytest.mark.slow

SECRET = "the user's own words"


class BuggyBrowse:
    """A service with a programming error in it."""

    async def windows(self, *_: Any) -> Any:
        raise ZeroDivisionError(SECRET)

    async def sessions(self, *_: Any) -> Any:
        raise StorageReadError("The registry cannot be read.", table="sessions")

    async def window(self, *_: Any) -> Any:
        raise InternalError("Rows contradict each other.")


async def test_an_unexpected_exception_is_cwm_9001_logged_and_not_told(tmp_path: Path, era: str) -> None:
    async with (
        running_gateway(tmp_path, services={"browse": BuggyBrowse()}) as broken,
        fastmcp_agent(broken.url, era) as agent,
    ):
        with capture_logs() as logs:
            answer = await agent.call("window_list")
    assert answer.error == {
        "code": "CWM-9001",
        "message": "CWM failed unexpectedly; its log has the details.",
        "retryable": False,
        "context": {},
    }
    assert SECRET not in json.dumps([answer.text, answer.meta])
    (entry,) = [e for e in logs if e["event"] == "tool_failed"]
    assert (entry["tool"], entry["log_level"]) == ("window_list", "error")
    assert isinstance(entry["exc_info"], ZeroDivisionError)


async def test_each_call_of_a_tool_of_ours_is_a_line_in_the_log_without_contents(
    gateway: Gateway, agent: Agent
) -> None:
    with capture_logs() as logs:
        await agent.call("session_list")
        await agent.call("window_status", {"window_name": "secret-name"})
    lines = [entry for entry in logs if entry["event"] == "tool_called"]
    assert [(line["tool"], line["outcome"], line.get("code")) for line in lines] == [
        ("session_list", "success", None),
        ("window_status", "refused", "CWM-2002"),
    ]
    assert all(line["log_level"] == "info" and line["ms"] > 0 for line in lines)
    assert "secret-name" not in str(lines)


async def test_a_coded_failure_of_a_service_keeps_its_code_message_and_context(
    tmp_path: Path, era: str
) -> None:
    async with (
        running_gateway(tmp_path, services={"browse": BuggyBrowse()}) as broken,
        fastmcp_agent(broken.url, era) as agent,
    ):
        assert (await agent.call("session_list")).error == {
            "code": "CWM-4002",
            "message": "The registry cannot be read.",
            "retryable": True,
            "context": {"table": "sessions"},
        }
        internal = (await agent.call("window_status", {"window_name": "w"})).error
        assert (internal["code"], internal["message"]) == ("CWM-9001", "Rows contradict each other.")


async def test_a_resource_that_fails_is_a_protocol_error_with_the_coded_object(
    tmp_path: Path, era: str
) -> None:
    async with (
        running_gateway(tmp_path, services={"browse": BuggyBrowse()}) as broken,
        fastmcp_agent(broken.url, era) as agent,
    ):
        with pytest.raises(MCPError) as coded:
            await agent.client.read_resource("cwm://sessions")
        with pytest.raises(MCPError) as unexpected:
            await agent.client.read_resource("cwm://windows")
    assert coded.value.error.data["code"] == "CWM-4002"
    assert unexpected.value.error.data["code"] == "CWM-9001"
    assert SECRET not in str(unexpected.value.error)


@pytest.mark.parametrize("kind", [fastmcp_agent, sdk_agent])
async def test_an_unknown_tool_is_a_protocol_error_as_the_protocol_wants(
    gateway: Gateway, era: str, kind: Any
) -> None:
    async with kind(gateway.url, era) as agent:
        for name in ("window_melt", "x\x00" * 5000):
            with pytest.raises(MCPError) as refused:
                await agent.call(name)
            assert refused.value.error.code == -32602
            assert refused.value.error.data["code"] == "CWM-1003"
            assert len(str(refused.value.error)) < 500


async def test_an_unknown_resource_is_invalid_params(agent: Agent) -> None:
    with pytest.raises(MCPError) as refused:
        await agent.client.read_resource("cwm://nothing")
    assert refused.value.error.code == -32602


async def test_a_client_that_raises_on_errors_reads_the_coded_text(gateway: Gateway, era: str) -> None:
    async with fastmcp_agent(gateway.url, era) as agent:
        with pytest.raises(ToolError) as refused:
            await agent.client.call_tool("window_thaw", {"window_name": "w"})
    assert json.loads(str(refused.value))["code"] == "CWM-2002"


@pytest.mark.parametrize(
    ("raw", "status"),
    [(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": ', 400), (b"[" * 100_000, 400)],
)
async def test_what_is_no_json_is_refused_in_both_eras(
    gateway: Gateway, era: str, raw: bytes, status: int
) -> None:
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    if era != "legacy":
        headers["mcp-protocol-version"] = era
    async with httpx2.AsyncClient(trust_env=False) as http:
        response = await http.post(f"{gateway.url}/mcp", content=raw, headers=headers)
    assert response.status_code in {status, 413}
    assert response.json()["error"]["code"] in {-32700, -32600}


@pytest.mark.parametrize(
    ("field", "code"), [("search", "CWM-1003"), ("window_name", "CWM-1002"), ("\\ud83d", "CWM-1003")]
)
async def test_half_a_surrogate_pair_is_refused_and_its_field_named(
    gateway: Gateway, field: str, code: str
) -> None:
    tool = "window_delete" if field == "window_name" else "window_list"
    body = f"""{{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {{
        "name": "{tool}", "arguments": {{"{field}": "half \\ud800 pair"}}, "_meta": {{
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {{}}}}}}}}"""
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }
    async with httpx2.AsyncClient(trust_env=False) as http:
        response = await http.post(f"{gateway.url}/mcp", content=body.encode(), headers=headers)
    result = response.json()["result"]
    error = json.loads(result["content"][0]["text"])
    assert (result["isError"], error["code"]) == (True, code)
    assert error["context"]["field"] == field


@pytest.mark.parametrize("fails", ["refused", "dies"])
async def test_a_thaw_whose_continuation_fails_leaves_no_session_behind(
    tmp_path: Path, era: str, fails: str
) -> None:
    async with (
        fake_vllm() as vllm,
        running_gateway(tmp_path, engine=settings_for(vllm.url)) as gateway,
        fastmcp_agent(gateway.url, era) as agent,
    ):
        await agent.call("session_create", {"session_id": "s"})
        await agent.call("session_generate", {"session_id": "s", "text": "hey"})
        await agent.call("window_freeze", {"session_id": "s", "window_name": "w"})
        thaw = {"window_name": "w", "new_session_id": "t"}
        forged = f"{SPECIAL} and then?"
        if fails == "dies":
            vllm.behaviour = Behaviour.DIES_MID_STREAM
        failed = await agent.call(
            "window_thaw", {**thaw, "continuation_prompt": forged if fails == "refused" else "?"}
        )
        assert failed.error["code"] in {"CWM-9002", "CWM-5001", "CWM-5002"}
        listed = (await agent.call("session_list")).value["sessions"]
        assert [session["id"] for session in listed] == ["s"]
        assert (await agent.call("window_thaw", thaw)).value["session_id"] == "t"
