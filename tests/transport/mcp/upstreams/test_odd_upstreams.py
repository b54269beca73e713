"""Upstreams that answer oddly: what can be kept is kept, what cannot is named, and no call waits for nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from cwm.domain.upstream import UpstreamSpec
from tests.adapters.upstream.bad_server import Reply, bad_server, error, replying, result
from tests.adapters.upstream.programs import spec as program
from tests.transport.mcp.gateway import LEGACY, MODERN, Gateway, gateway
from tests.transport.mcp.wire import MODERN_META, Wire, wired

pytestmark = pytest.mark.slow

TOOL = {"name": "go", "inputSchema": {"type": "object"}}


@asynccontextmanager
async def fronted(folder: Path, *specs: UpstreamSpec) -> AsyncIterator[tuple[Wire, Gateway]]:
    async with gateway(folder, upstreams=specs) as running, wired(running.url) as wire:
        yield wire, running


async def asked(wire: Wire, era: str, method: str, **params: Any) -> dict[str, Any]:
    """The message that answers, within ten seconds: upstreams have 300 for a call."""
    async with asyncio.timeout(10):
        response = await wire.ask_as(era, method, params)
    body = response.text
    data = [line.removeprefix("data:") for line in body.splitlines() if line.startswith("data:")]
    return dict(json.loads(data[-1] if data else body))


async def called(wire: Wire, tool: str, arguments: str = "{}") -> dict[str, Any]:
    """``arguments`` are JSON, or nearly."""
    session = await wire.session()
    body = f'{{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments}}}}}'
    headers = {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "mcp-session-id": session,
    }
    async with asyncio.timeout(10):
        response = await wire.http.post("/mcp", content=body.encode(), headers=headers)
    data = [line.removeprefix("data:") for line in response.text.splitlines() if line.startswith("data:")]
    return dict(json.loads(data[-1] if data else response.text))


def said(answer: dict[str, Any]) -> str:
    """What the caller reads: the message of an error, or the first text."""
    if "error" in answer:
        return str(answer["error"]["message"])
    return "".join(block["text"] for block in answer["result"]["content"][:1])


def coded(answer: dict[str, Any]) -> dict[str, Any]:
    assert answer["result"]["isError"]
    return dict(json.loads(said(answer)))


async def listed(wire: Wire, era: str, method: str = "tools/list") -> tuple[set[str], dict[str, Any]]:
    """The names of an upstream's tools, and what is absent and why."""
    answer = (await asked(wire, era, method))["result"]
    items = next(value for value in answer.values() if isinstance(value, list))
    return {each["name"] for each in items}, answer.get("_meta", {}).get("dev.cwm/absent", {})


def listing(*pages: dict[str, Any]) -> Reply:
    """Answers a list with ``pages``, one after the other, by their cursor; the last again and again."""
    number = -1

    async def page(_: Request, message: dict[str, Any]) -> Response:
        nonlocal number
        number = 0 if "cursor" not in message.get("params", {}) else min(number + 1, len(pages) - 1)
        return JSONResponse(result(message, pages[number]))

    return page


ODD_TOOLS: dict[str, dict[str, Any]] = {
    "schema that is empty": {"name": "odd", "inputSchema": {}},
    "no schema": {"name": "odd"},
    "properties null": {"name": "odd", "inputSchema": {"type": "object", "properties": None}},
    "properties a list": {"name": "odd", "inputSchema": {"type": "object", "properties": []}},
    "union at the root": {"name": "odd", "inputSchema": {"anyOf": [{"type": "object"}]}},
    "output an array": {**TOOL, "name": "odd", "outputSchema": {"type": "array"}},
    "a hint of words": {**TOOL, "name": "odd", "annotations": {"readOnlyHint": "maybe", "title": "Odd"}},
    "icons of text": {**TOOL, "name": "odd", "icons": "x.png"},
    "a title that is a number": {**TOOL, "name": "odd", "title": 5},
    "a schema of text": {"name": "odd", "inputSchema": "object"},
    "no name": {"inputSchema": {"type": "object"}},
}
LEFT_OUT = {
    "a schema of text": '"odd" (left out: its inputSchema is not valid)',
    "no name": "number 2 (left out",
}
WITHOUT = {
    "output an array": '"odd" (without outputSchema)',
    "a hint of words": '"odd" (without annotations.readOnlyHint)',
    "icons of text": '"odd" (without icons)',
    "a title that is a number": '"odd" (without title)',
}


@pytest.mark.parametrize("odd", ODD_TOOLS)
async def test_one_odd_tool_takes_no_other_with_it_and_what_is_left_out_of_it_is_named(
    tmp_path: Path, era: str, odd: str
) -> None:
    async with bad_server() as server, bad_server() as other:
        server.on["tools/list"] = listing({"tools": [TOOL, ODD_TOOLS[odd]]})
        async with fronted(tmp_path, server.spec("up"), other.spec("other")) as (wire, running):
            names, absent = await listed(wire, era)
            health = {each.name: each.missing for each in running.parts.agent_side.upstreams.health()}
        assert {"up_go", "other_do", "window_list"} <= names
        assert ("up_odd" in names) == (odd not in LEFT_OUT)
        why = LEFT_OUT.get(odd) or WITHOUT.get(odd)
        assert (why is None) == ("up" not in absent)
        assert why is None or why in absent["up"]
        assert health == {"up": (absent["up"],) if why else (), "other": ()}


@pytest.mark.parametrize(
    ("method", "field", "good", "odd", "why"),
    [
        (
            "resources/list",
            "resources",
            {"uri": "a://b", "name": "b"},
            {"uri": "a://c", "name": "c", "size": "big"},
            '"a://c" (without size)',
        ),
        (
            "resources/list",
            "resources",
            {"uri": "a://b", "name": "b"},
            {"name": "c"},
            "number 2 (left out: its uri is not valid)",
        ),
        (
            "resources/templates/list",
            "resourceTemplates",
            {"uriTemplate": "a://{b}", "name": "b"},
            {"uriTemplate": 7, "name": "c"},
            "number 2 (left out: its uriTemplate is not valid)",
        ),
        (
            "prompts/list",
            "prompts",
            {"name": "b"},
            {"name": "c", "arguments": "x"},
            '"c" (without arguments)',
        ),
    ],
)
async def test_lists_of_other_kinds_are_read_item_by_item_too(
    tmp_path: Path, era: str, method: str, field: str, good: dict[str, Any], odd: dict[str, Any], why: str
) -> None:
    async with bad_server() as server:
        server.capabilities = {"tools": {}, "resources": {}, "prompts": {}}
        server.on |= {
            name: listing({of: []})
            for name, of in {
                "resources/list": "resources",
                "resources/templates/list": "resourceTemplates",
                "prompts/list": "prompts",
            }.items()
        }
        server.on[method] = listing({field: [good, odd]})
        async with fronted(tmp_path, server.spec("up")) as (wire, _):
            names, absent = await listed(wire, era, method)
        assert "up_b" in names
        assert why in absent["up"]


async def test_a_tool_with_a_number_that_json_does_not_have_or_nested_too_deep_is_left_out_alone(
    tmp_path: Path, era: str
) -> None:
    nested = "[" * 300 + "]" * 300
    odd = [
        '{"name":"number","inputSchema":{"type":"object","maxProperties":1e400}}',
        f'{{"name":"nested","inputSchema":{{"type":"object","default":{nested}}}}}',
    ]

    async def page(_: Request, message: dict[str, Any]) -> Response:
        tools = ",".join([json.dumps(TOOL), *odd])
        body = f'{{"jsonrpc":"2.0","id":{message["id"]},"result":{{"tools":[{tools}]}}}}'
        return Response(body, media_type="application/json")

    async with bad_server() as server:
        server.on["tools/list"] = page
        async with fronted(tmp_path, server.spec("up")) as (wire, _):
            names, absent = await listed(wire, era)
        assert [name for name in names if name.startswith("up_")] == ["up_go"]
        assert '"number" (left out: it holds a number' in absent["up"]
        assert '"nested" (left out: it is nested too deep)' in absent["up"]


@pytest.mark.parametrize("cursor", ["", "again"])
async def test_a_list_ends_when_a_cursor_comes_again(tmp_path: Path, cursor: str) -> None:
    async with bad_server() as server:
        server.on["tools/list"] = listing({"tools": [TOOL], "nextCursor": cursor})
        async with fronted(tmp_path, server.spec("up")) as (wire, _):
            names, absent = await listed(wire, LEGACY)
        assert "up_go" in names
        assert absent == {"up": "its list of tools does not end"}
        assert server.methods().count("tools/list") == 2


async def test_a_list_of_pages_without_items_ends(tmp_path: Path) -> None:
    empty: list[dict[str, Any]] = [{"tools": [], "nextCursor": str(n)} for n in range(1, 50)]
    async with bad_server() as server:
        server.on["tools/list"] = listing({"tools": [TOOL], "nextCursor": "0"}, *empty)
        async with fronted(tmp_path, server.spec("up")) as (wire, _):
            names, absent = await listed(wire, LEGACY)
        assert "up_go" in names
        assert "does not end" in absent["up"]
        assert server.methods().count("tools/list") < 6


async def test_a_kind_or_a_page_that_is_refused_takes_nothing_else_with_it(tmp_path: Path) -> None:
    async with bad_server() as server:
        server.capabilities = {"tools": {}, "prompts": {}}
        server.on["prompts/list"] = replying(lambda: JSONResponse(error(None, "no prompts today"), 200))

        async def first_only(_: Request, message: dict[str, Any]) -> Response:
            if "cursor" in message.get("params", {}):
                return PlainTextResponse("page lost", 410)
            return JSONResponse(result(message, {"tools": [TOOL], "nextCursor": "2"}))

        server.on["tools/list"] = first_only
        async with fronted(tmp_path, server.spec("up")) as (wire, _):
            names, absent = await listed(wire, LEGACY)
            assert "up_go" in names
            assert absent["up"] == "its tools are listed in part: it answers HTTP 410: page lost"
            _, absent = await listed(wire, LEGACY, "prompts/list")
            assert absent["up"] == "its prompts are not listed: no prompts today"


def line(code: str) -> UpstreamSpec:
    """A program that answers each call with the bytes of ``code``, an expression in which ``i`` is the id."""
    return program(
        f"""
def call(request):
    i = str(request["id"]).encode()
    sys.stdout.buffer.write({code} + b"\\n")
    sys.stdout.buffer.flush()
real = answer
def answer(request, result):
    if result is not None:
        real(request, result)
serve(call)
"""
    )


START = """b'{"jsonrpc":"2.0","id":' + i + b'"""
LINES = {
    "half an emoji": (
        START + r""","result":{"content":[{"type":"text","text":"cut \\ud83d"}]}}'""",
        "cut \ufffd",
    ),
    "latin-1": (START + r""","result":{"content":[{"type":"text","text":"caf\xe9"}]}}'""", "caf\ufffd"),
    "a byte order mark": (
        r"""b'\xef\xbb\xbf' + """ + START + r""","result":{"content":[{"type":"text","text":"done"}]}}'""",
        "done",
    ),
    "a tab in a text": (START + ""","result":{"content":[{"type":"text","text":"a\\tb"}]}}'""", "a\tb"),
    "an id that is a float": (
        """b'{"jsonrpc":"2.0","id":' + i + b'.0,"result":{"content":[{"type":"text","text":"done"}]}}'""",
        "done",
    ),
    "no version": (
        """b'{"id":' + i + b',"result":{"content":[{"type":"text","text":"done"}]}}'""",
        "done",
    ),
    "a batch": (
        """b'[' + """ + START + ""","result":{"content":[{"type":"text","text":"done"}]}}]'""",
        "done",
    ),
    "an error without message": (START + ""","error":{"code":-32000}}'""", "Upstream bad: it failed and"),
    "an error with a word for its code": (
        START + ""","error":{"code":"ENOENT","message":"no such file"}}'""",
        "Upstream bad: ENOENT: no such file",
    ),
    "an error of text": (START + ""","error":"disk full"}'""", "Upstream bad: disk full"),
    "no result": (START + ""","result":null}'""", "Upstream bad: its answer has no result"),
    "a result that is a list": (START + ""","result":[1]}'""", "Upstream bad: its answer has no result"),
    "half a line": (START + ""","result":{"content":['""", "Upstream bad: its answer is not JSON"),
    "deep nesting": (
        START
        + ""","result":{"content":[],"structuredContent":{"tree":' + b'[' * 210 + b']' * 210 + b'}}}'""",
        "Upstream bad: its answer is nested too deep",
    ),
    "deeper nesting": (
        START + ""","result":{"content":[],"x":' + b'[' * 90000 + b']' * 90000 + b'}}'""",
        "Upstream bad: its answer is nested too deep",
    ),
    "several lines": (
        """json.dumps(json.loads(""" + START + ""","result":{"content":[]}}'), indent=1).encode()""",
        "",
    ),
}


@pytest.mark.parametrize("odd", LINES)
async def test_a_line_that_bears_the_id_of_a_call_ends_the_call_whatever_else_it_holds(
    tmp_path: Path, odd: str
) -> None:
    code, right = LINES[odd]
    async with fronted(tmp_path, line(code)) as (wire, _):
        assert said(await called(wire, "bad_do")).startswith(right)


def over_http(body: str) -> Reply:
    async def reply(_: Request, message: dict[str, Any]) -> Response:
        return Response(body.replace("ID", str(message["id"])), media_type="application/json")

    return reply


BODIES = {
    '{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"quota used up"}}': "quota used up",
    '{"jsonrpc":"2.0","id":"server-error","error":{"code":-32000,"message":"quota used up"}}': "quota used up",
    '{"jsonrpc":"2.0","id":999,"result":{"content":[]}}': "its answer does not have the id of the request",
    '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}': (
        "its answer does not have the id of the request"
    ),
    "[]": "its answer is not MCP",
    '{"jsonrpc":"2.0","id":ID,"error":"quota used up"}': "quota used up",
}


@pytest.mark.parametrize("body", BODIES)
async def test_a_response_without_the_answer_ends_the_call_with_what_the_upstream_said(
    tmp_path: Path, body: str
) -> None:
    async with bad_server() as server:
        server.on["tools/call"] = over_http(body)
        async with fronted(tmp_path, server.spec("up")) as (wire, _):
            assert said(await called(wire, "up_do")) == f"Upstream up: {BODIES[body]}"


async def test_an_answer_never_ends_another_call_than_its_own(tmp_path: Path) -> None:
    async with bad_server() as server:
        server.on["tools/call"] = server.holding
        async with fronted(tmp_path, server.spec("up", stateless=True)) as (wire, _):
            held = asyncio.create_task(called(wire, "up_do"))
            await server.began.wait()
            held_id = next(m["id"] for m in server.messages if m.get("method") == "tools/call")
            server.on["tools/call"] = over_http(
                f'{{"jsonrpc":"2.0","id":{held_id},"result":{{"content":[{{"type":"text","text":"mixed up"}}]}}}}'
            )
            assert "does not have the id" in said(await called(wire, "up_do"))
            server.go_on.set()
            assert said(await held) == "held"


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_upstream_says_so_and_when_to_ask_again(tmp_path: Path, status: int) -> None:
    async with bad_server() as server:
        headers = {"retry-after": "7"}
        server.on["tools/call"] = replying(lambda: PlainTextResponse("slow down", status, headers=headers))
        async with fronted(tmp_path, server.spec("up")) as (wire, _):
            told = coded(await called(wire, "up_do"))
        assert (told["code"], told["retryable"]) == ("CWM-5003", True)
        assert told["context"] == {
            "upstream": "up",
            "status": status,
            "retry_after_seconds": 7,
            "reason": f"it takes no requests now (HTTP {status}: slow down)",
        }
        assert server.methods().count("tools/call") == 1


@pytest.mark.parametrize("status", [400, 401, 402, 403, 413, 422])
async def test_a_rejected_call_says_with_which_status_and_words_and_is_not_retryable(
    tmp_path: Path, status: int
) -> None:
    async with bad_server() as server:
        server.on["tools/call"] = replying(lambda: JSONResponse({"detail": "city is required"}, status))
        async with fronted(tmp_path, server.spec("up")) as (wire, _):
            told = coded(await called(wire, "up_do"))
        assert (told["code"], told["retryable"]) == ("CWM-5006", False)
        assert told["message"].startswith("Upstream up rejects")
        assert f'HTTP {status}: {{"detail":"city is required"}}' in told["message"]


@pytest.mark.parametrize("status", [400, 404, 500])
async def test_an_upstreams_own_error_reaches_the_caller_whatever_the_status(
    tmp_path: Path, status: int
) -> None:
    async def reply(_: Request, message: dict[str, Any]) -> Response:
        return JSONResponse(error(message["id"], "database password expired", -32001), status)

    async with bad_server() as server:
        server.on["tools/call"] = reply
        async with fronted(tmp_path, server.spec("up")) as (wire, _):
            answer = await called(wire, "up_do")
        assert answer["error"]["code"] == -32001
        assert said(answer) == "Upstream up: database password expired"


async def test_an_upstream_that_rejects_cwm_from_the_start_says_why_and_is_not_retryable(
    tmp_path: Path,
) -> None:
    async with bad_server() as server:
        for method in ("server/discover", "initialize"):
            server.on[method] = replying(lambda: PlainTextResponse("key expired on Monday", 401))
        async with fronted(tmp_path, server.spec("up")) as (wire, _):
            _, absent = await listed(wire, LEGACY)
            told = coded(await called(wire, "up_do"))
        assert absent["up"] == "it refuses our credentials (HTTP 401: key expired on Monday)"
        assert (told["code"], told["retryable"]) == ("CWM-5006", False)


async def test_what_an_upstream_says_never_holds_the_credentials_it_got(tmp_path: Path) -> None:
    async def echo(request: Request, _: dict[str, Any]) -> Response:
        return PlainTextResponse(
            f"who is {request.headers['authorization']}, {request.headers['x-key']}?", 400
        )

    headers = {"authorization": "Bearer s3cr3t-of-the-operator", "x-key": "another-s3cr3t"}
    async with bad_server() as server:
        server.on["tools/call"] = echo
        async with fronted(tmp_path, server.spec("up", headers=headers)) as (wire, _):
            answer = said(await called(wire, "up_do"))
        assert "HTTP 400: who is [hidden], [hidden]?" in answer


async def test_a_number_that_json_does_not_have_is_refused_and_never_becomes_another(tmp_path: Path) -> None:
    async with bad_server() as server:
        async with fronted(tmp_path, server.spec("up")) as (wire, _):
            for number in ("1e400", "-1e999", "NaN", '[{"deep": Infinity}]', "1" * 5000):
                answer = await called(wire, "up_do", f'{{"limit": {number}}}')
                assert "result" not in answer or coded(answer)["code"] == "CWM-1003"
            assert server.methods().count("tools/call") == 0
            assert said(await called(wire, "up_do", '{"limit": 12345678901234567890123}')) == "done"
        sent = next(m for m in server.messages if m.get("method") == "tools/call")
        assert sent["params"]["arguments"] == {"limit": 12345678901234567890123}


async def test_half_of_a_surrogate_pair_in_an_argument_is_refused(tmp_path: Path) -> None:
    params = {"name": "bad_do", "arguments": {"text": "HALF"}, "_meta": MODERN_META}
    body = json.dumps({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params})
    headers = {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "mcp-protocol-version": MODERN,
        "mcp-method": "tools/call",
        "mcp-name": "bad_do",
    }
    async with fronted(tmp_path, program("serve()")) as (wire, _):
        async with asyncio.timeout(10):
            half = await wire.http.post("/mcp", content=body.replace("HALF", r"\ud83d"), headers=headers)
        assert coded(half.json())["code"] == "CWM-1003"
        assert said(await called(wire, "bad_do")) == "done"


@pytest.mark.parametrize("number", ["1e400", "NaN"])
async def test_a_result_with_a_number_that_json_does_not_have_arrives_as_an_error_with_its_text(
    tmp_path: Path, number: str
) -> None:
    body = (
        '{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"the text"}],'
        f'"structuredContent":{{"v":{number}}}}}}}'
    )
    async with bad_server() as server:
        server.on["tools/call"] = over_http(body)
        async with fronted(tmp_path, server.spec("up")) as (wire, _):
            answer = (await called(wire, "up_do"))["result"]
        assert answer["isError"]
        assert "structuredContent" not in answer
        assert answer["content"][0]["text"] == "the text"
        assert "was done" in answer["content"][1]["text"]


async def test_words_that_look_like_such_a_number_pass(tmp_path: Path) -> None:
    async def reply(_: Request, message: dict[str, Any]) -> Response:
        return JSONResponse(result(message, {"content": [], "structuredContent": {"v": ["NaN", "Infinity"]}}))

    async with bad_server() as server:
        server.on["tools/call"] = reply
        async with fronted(tmp_path, server.spec("up")) as (wire, _):
            answer = (await called(wire, "up_do", '{"word": "NaN"}'))["result"]
        assert answer["structuredContent"] == {"v": ["NaN", "Infinity"]}


@pytest.mark.parametrize(
    ("method", "params", "odd"),
    [
        ("resources/read", {"uri": "a://up/b"}, {"contents": [{"text": "no uri"}]}),
        ("prompts/get", {"name": "up_b"}, {"messages": [{"role": "user", "content": {"type": "chart"}}]}),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "up_b"}, "argument": {"name": "x", "value": ""}},
            {"completion": {"values": "abc"}},
        ),
    ],
)
async def test_an_answer_that_is_not_mcp_is_refused_with_the_upstreams_name(
    tmp_path: Path, era: str, method: str, params: dict[str, Any], odd: dict[str, Any]
) -> None:
    async def reply(_: Request, message: dict[str, Any]) -> Response:
        return JSONResponse(result(message, odd))

    async with bad_server() as server:
        server.capabilities = {"tools": {}, "prompts": {}, "completions": {}, "resources": {}}
        server.on |= {
            "prompts/list": listing({"prompts": [{"name": "b"}]}),
            "resources/list": listing({"resources": []}),
            "resources/templates/list": listing({"resourceTemplates": []}),
            method: reply,
        }
        async with fronted(tmp_path, server.spec("up")) as (wire, _):
            answer = await asked(wire, era, method, **params)
        assert said(answer).startswith("Upstream up: its answer is not MCP")
