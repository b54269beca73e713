"""What MCP allows works through the gateway as it works straight, field by field."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cwm.domain.budgets import Budgets
from cwm.domain.tool_policy import ToolPolicies, ToolPolicy
from tests.adapters.upstream.bad_server import bad_server, error, result
from tests.transport.mcp.gateway import LEGACY, MODERN, gateway
from tests.transport.mcp.upstreams.legal_answers import (
    ARGUMENTS,
    COMPLETIONS,
    IDS,
    OWN_URI,
    PROMPTS,
    READS,
    RESULTS,
    TEMPLATES,
    TEXT,
    TOOLS,
    URIS,
    VALUES,
)
from tests.transport.mcp.wire import MODERN_META, Wire, wired

pytestmark = pytest.mark.slow

ENVELOPE = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
PROMPT = {
    "name": "ask",
    "title": "Ask",
    "description": "",
    "arguments": [{"name": "a"}, {"name": "agent_session"}],
}


@dataclass(slots=True)
class Upstream:
    """Answers every request of ``version`` with ``answer``, and its lists with every legal form of an item."""

    version: str = LEGACY
    answer: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=dict)

    @property
    def lists(self) -> dict[str, dict[str, Any]]:
        templates = [{"uriTemplate": each, "name": each, "mimeType": "a/b"} for each in TEMPLATES]
        return {
            "tools/list": {"tools": TOOLS},
            "resources/list": {"resources": [{"uri": each, "name": each, "size": 0} for each in URIS]},
            "resources/templates/list": {"resourceTemplates": templates},
            "prompts/list": {"prompts": [PROMPT]},
        }

    async def reply(self, _: Request, message: dict[str, Any]) -> Response:
        method = message["method"]
        if method == "server/discover":
            if self.version == LEGACY:
                return JSONResponse(error(None, "Bad Request: unsupported"), 400)
            found = {"supportedVersions": [MODERN], "capabilities": CAPABILITIES}
            return JSONResponse(result(message, {**ENVELOPE, **found}))
        answer = self.lists.get(method)
        if answer is None:
            self.asked, answer = message, self.answer
        envelope = {} if self.version == LEGACY else ENVELOPE
        return JSONResponse(result(message, {**envelope, **answer}))


CAPABILITIES: dict[str, Any] = {"tools": {}, "resources": {}, "prompts": {}, "completions": {}}
METHODS = (
    *("server/discover", "tools/list", "resources/list", "resources/templates/list", "prompts/list"),
    *("tools/call", "prompts/get", "resources/read", "completion/complete"),
)


@dataclass(frozen=True, slots=True)
class Both:
    """The upstream, and the gateway before it."""

    upstream: Upstream
    wire: Wire
    era: str

    async def through(self, method: str, **params: Any) -> dict[str, Any]:
        """What the gateway answers, without what the client's version of MCP adds."""
        answer = parsed((await self.wire.ask_as(self.era, method, params)).text)
        fields = dict(answer.get("result", answer))
        meta = fields.pop("_meta", {})
        own = {name: value for name, value in meta.items() if name not in {SERVER_INFO, "fastmcp"}}
        return {name: fields[name] for name in fields if name not in ENVELOPE} | (
            {"_meta": own} if own else {}
        )


SERVER_INFO = "io.modelcontextprotocol/serverInfo"


def parsed(body: str) -> dict[str, Any]:
    data = [line.removeprefix("data:") for line in body.split("\n") if line.startswith("data:")]
    return dict(json.loads(data[-1] if data else body))


def exposed(answer: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(answer).replace(OWN_URI, "file://up//a")))


@asynccontextmanager
async def both(
    folder: Path, era: str, version: str = LEGACY, *, stateless: bool = True, **options: Any
) -> AsyncIterator[Both]:
    upstream = Upstream(version)
    async with bad_server(**dict.fromkeys(METHODS, upstream.reply)) as server:
        server.capabilities = CAPABILITIES
        specs = [server.spec("up", stateless=stateless)]
        async with gateway(folder, upstreams=specs, **options) as running, wired(running.url) as wire:
            yield Both(upstream, wire, era)


async def test_results_of_tools(tmp_path: Path, era: str) -> None:
    async with both(tmp_path, era) as pair:
        for case, answer in RESULTS.items():
            pair.upstream.answer = answer
            through = await pair.through("tools/call", name="up_go", arguments={})
            assert through == {"content": [], "isError": False} | exposed(answer), case


@pytest.mark.parametrize("budget", [None, 300])
async def test_structured_content_of_any_value(tmp_path: Path, era: str, budget: int | None) -> None:
    policies = ToolPolicies(ToolPolicy(max_tokens=budget, preview_tokens=200))
    async with both(tmp_path, era, MODERN, budgets=Budgets(policies)) as pair:
        for value in VALUES:
            pair.upstream.answer = {"content": [TEXT], "structuredContent": value}
            through = await pair.through("tools/call", name="up_go", arguments={})
            # Earlier versions of MCP have objects only.
            is_object = era == MODERN or isinstance(value, dict)
            assert through["structuredContent"] == (value if is_object else {"result": value})
        pair.upstream.answer = {"structuredContent": [{"row": each} for each in range(2_000)]}
        through = await pair.through("tools/call", name="up_go", arguments={})
        assert not through["isError"]
        assert through["structuredContent"]


async def test_prompts_resources_and_completions(tmp_path: Path, era: str) -> None:
    async with both(tmp_path, era) as pair:
        for case, answer in PROMPTS.items():
            pair.upstream.answer = answer
            given = {"a": "", "agent_session": "s"}
            through = await pair.through("prompts/get", name="up_ask", arguments=given)
            assert through == exposed(answer), case
            assert pair.upstream.asked["params"]["arguments"] == given
        for case, answer in READS.items():
            pair.upstream.answer = answer
            assert await pair.through("resources/read", uri="file://up//a") == exposed(answer), case
        for case, answer in COMPLETIONS.items():
            pair.upstream.answer = answer
            request = {"argument": {"name": "a", "value": ""}, "context": {"arguments": {"b": ""}}}
            ref = {"type": "ref/prompt", "name": "up_ask"}
            assert await pair.through("completion/complete", ref=ref, **request) == answer, case
            sent = pair.upstream.asked["params"]
            assert {name: sent[name] for name in request} == request


async def test_definitions(tmp_path: Path, era: str) -> None:
    async with both(tmp_path, era) as pair:
        listed = {
            each["name"]: each
            for method, kind in (("tools/list", "tools"), ("prompts/list", "prompts"))
            for each in (await pair.through(method))[kind]
        }
        for own in (*TOOLS, PROMPT):
            assert listed[f"up_{own['name']}"] == {**own, "name": f"up_{own['name']}"}


async def test_uris(tmp_path: Path, era: str) -> None:
    async with both(tmp_path, era) as pair:
        listed = {each["name"]: each for each in (await pair.through("resources/list"))["resources"]}
        for own in URIS:
            uri = listed[f"up_{own}"]["uri"]
            pair.upstream.answer = {"contents": [{"uri": own, "text": "t"}]}
            through = await pair.through("resources/read", uri=uri)
            assert through == {"contents": [{"uri": uri, "text": "t"}]}, own
            assert pair.upstream.asked["params"]["uri"] == own


async def test_templates_of_uris(tmp_path: Path, era: str) -> None:
    async with both(tmp_path, era) as pair:
        listed = (await pair.through("resources/templates/list"))["resourceTemplates"]
        templates = {each["name"]: each["uriTemplate"] for each in listed}
        for own, (template, expansion, uri) in TEMPLATES.items():
            assert templates[f"up_{own}"] == template
            pair.upstream.answer = {"contents": [{"uri": expansion, "text": "t"}]}
            assert (await pair.through("resources/read", uri=uri))["contents"] == [{"uri": uri, "text": "t"}]
            assert pair.upstream.asked["params"]["uri"] == expansion
            pair.upstream.answer = {"completion": {"values": ["v"]}}
            ref, argument = {"type": "ref/resource", "uri": template}, {"name": "a", "value": ""}
            completed = await pair.through("completion/complete", ref=ref, argument=argument)
            assert completed == pair.upstream.answer
            assert pair.upstream.asked["params"]["ref"]["uri"] == own


async def test_arguments(tmp_path: Path, era: str) -> None:
    async with both(tmp_path, era) as pair:
        pair.upstream.answer = {"content": [TEXT]}
        for arguments in ARGUMENTS:
            assert not (await pair.through("tools/call", name="up_go", arguments=arguments))["isError"]
            assert json.dumps(pair.upstream.asked["params"]["arguments"]) == json.dumps(arguments)


async def test_an_argument_that_is_named_like_our_handle(tmp_path: Path, era: str) -> None:
    async with both(tmp_path, era, stateless=False) as pair:
        pair.upstream.answer = {"content": [TEXT]}
        arguments = {"a": "", "agent_session": "mine"}
        for tool in ("up_full", "up_nested") + (("up_go",) if era == LEGACY else ()):
            assert not (await pair.through("tools/call", name=tool, arguments=arguments))["isError"]
            assert pair.upstream.asked["params"]["arguments"] == arguments


async def test_ids_and_tokens_of_progress(tmp_path: Path, era: str) -> None:
    async with both(tmp_path, era) as pair:
        pair.upstream.answer = {"content": [TEXT]}
        for each in IDS:
            meta = {"progressToken": each} | (MODERN_META if era == MODERN else {})
            params = {"name": "up_go", "arguments": {}, "_meta": meta}
            body = {"jsonrpc": "2.0", "id": each, "method": "tools/call", "params": params}
            if era == LEGACY:
                response = await pair.wire.post(body, mcp_session_id=await pair.wire.session())
            else:
                names = {"mcp_method": "tools/call", "mcp_name": "up_go"}
                response = await pair.wire.post(body, mcp_protocol_version=MODERN, **names)
            answer = parsed(response.text)
            assert (answer["id"], type(answer["id"])) == (each, type(each))
            assert answer["result"]["content"] == [TEXT]
