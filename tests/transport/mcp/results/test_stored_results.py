"""result_read, result_query and the resources of stored results, with real clients of both eras."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from mcp import MCPError

from cwm.domain.principal import Principal
from cwm.domain.results import Part, PartKind, StoredResult
from cwm.domain.tool_policy import ToolPolicy
from cwm.settings import Shared, StoredResults
from tests.transport.mcp.gateway import LEGACY, MODERN, Agent, Gateway, fastmcp_agent, sdk_agent
from tests.transport.mcp.gateway import gateway as running_gateway

pytestmark = pytest.mark.slow

ROWS = json.dumps({"items": [{"id": n, "name": f"row {n}"} for n in range(2_000)]})
LOG = "".join(f"{n} something happened: é漢👩🏽\u200d🚀\n" for n in range(3_000))
IMAGE = bytes(range(256)) * 40


async def kept(
    gateway: Gateway, tenant: str, *, subject: str = "agent", policy: ToolPolicy | None = None
) -> StoredResult:
    parts = [
        Part(PartKind.JSON, "application/json", ROWS.encode()),
        Part(PartKind.TEXT, "text/plain", LOG.encode()),
        Part(PartKind.BINARY, "image/png", IMAGE),
    ]
    return await gateway.parts.services.results.keep(
        Principal(tenant, subject), "docs_read", "a1", parts, policy or ToolPolicy()
    )


async def read_all(agent: Agent, **first: Any) -> list[dict[str, Any]]:
    pages = [(await agent.call("result_read", first)).value]
    while "next_cursor" in pages[-1]:
        pages.append((await agent.call("result_read", {"cursor": pages[-1]["next_cursor"]})).value)
    return pages


@pytest.mark.parametrize("connect", [fastmcp_agent, sdk_agent])
async def test_pages_put_together_are_what_the_tool_returned(
    gateway: Gateway, era: str, connect: Any
) -> None:
    async with connect(gateway.url, era) as agent:
        result = await kept(gateway, agent.tenant)
        pages = await read_all(agent, handle=result.handle)
    texts = ["".join(page["text"] for page in pages if page["part"] == part) for part in range(3)]
    assert texts == [ROWS, LOG, base64.b64encode(IMAGE).decode()]
    assert all(page["tokens"] <= 4_000 for page in pages)
    assert {page["encoding"] for page in pages if page["part"] == 2} == {"base64"}


async def test_the_first_text_is_the_page_and_the_second_says_where_it_is(
    gateway: Gateway, agent: Agent
) -> None:
    result = await kept(gateway, agent.tenant)
    answer = await agent.client.call_tool(
        "result_read", {"handle": result.handle, "part": 1, "page": 2, "max_tokens": 100}
    )
    page, about = answer.content
    told = dict(answer.structured_content)
    assert page.text == told.pop("text")
    assert json.loads(about.text) == told
    assert (told["part"], told["page"], told["kind"], told["media_type"]) == (1, 2, "text", "text/plain")
    assert LOG.encode()[told["start_byte"] : told["end_byte"]].decode() == page.text
    assert told["tokens"] <= 100


async def test_questions_are_answered_without_the_rest(gateway: Gateway, agent: Agent) -> None:
    result = await kept(gateway, agent.tenant)

    async def ask(**query: Any) -> dict[str, Any]:
        return (await agent.call("result_query", {"handle": result.handle, **query})).value

    assert (await ask(jmespath="items[?id > `1998`].name"))["text"] == '["row 1999"]'
    assert (await ask(json_pointer="/items/7/id"))["text"] == "7"
    assert (await ask(regex="^2999 .*", part=1))["text"].startswith("3000:2999 something")
    assert (await ask(search="NOTHING LIKE IT", part=1))["total"] == 0
    assert (await ask(tail=1, part=1))["text"] == LOG.splitlines(keepends=True)[-1]
    assert (await ask(count="bytes", part=2))["total"] == len(IMAGE)
    first = await ask(head=3_000, part=1, max_tokens=500)
    assert (first["truncated"], first["tokens"] <= 500) == (True, True)
    rest = await ask(head=3_000, part=1, max_tokens=500, cursor=first["next_cursor"])
    assert LOG.startswith(first["text"] + rest["text"])


async def test_every_answer_is_its_schemas(gateway: Gateway, agent: Agent) -> None:
    result = await kept(gateway, agent.tenant)
    tools = {tool.name: tool for tool in await agent.client.list_tools()}
    for name, arguments in (
        ("result_read", {"handle": result.handle}),
        ("result_read", {"handle": result.handle, "part": 2, "page": None}),
        ("result_query", {"handle": result.handle, "count": "items", "regex": None}),
        ("result_query", {"handle": result.handle, "json_pointer": "", "max_tokens": 64}),
    ):
        answer = await agent.call(name, arguments)
        Draft202012Validator(tools[name].output_schema).validate(answer.value)


@pytest.mark.parametrize(
    ("tool", "arguments", "field"),
    [
        ("result_read", {}, "cursor"),
        ("result_read", {"handle": "../x"}, "handle"),
        ("result_read", {"cursor": "x", "page": 2}, "page"),
        ("result_read", {"handle": "HANDLE", "page": 9_999}, "page"),
        ("result_read", {"handle": "HANDLE", "part": 3}, "part"),
        ("result_query", {"handle": "HANDLE"}, "query"),
        ("result_query", {"handle": "HANDLE", "head": 1, "tail": 1}, "query"),
        ("result_query", {"handle": "HANDLE", "regex": "("}, "regex"),
        ("result_query", {"handle": "HANDLE", "jmespath": "items["}, "jmespath"),
        ("result_query", {"handle": "HANDLE", "count": "sheep"}, "count"),
    ],
)
async def test_what_cannot_be_done_names_the_field(
    gateway: Gateway, agent: Agent, tool: str, arguments: dict[str, Any], field: str
) -> None:
    result = await kept(gateway, agent.tenant)
    given = {name: result.handle if value == "HANDLE" else value for name, value in arguments.items()}
    error = (await agent.call(tool, given)).error
    assert (error["code"], error["context"]["field"], error["retryable"]) == ("CWM-1003", field, False)


async def test_a_cursor_that_is_none_tells_no_more_than_that(agent: Agent) -> None:
    answers = [
        (await agent.call("result_read", {"cursor": cursor})).error for cursor in ("x", "A" * 120, "é" * 60)
    ]
    assert {json.dumps(answer) for answer in answers} == {json.dumps(answers[0])}
    assert answers[0]["context"]["reason"] == "malformed"


async def test_another_tenants_results_answer_like_those_that_do_not_exist(
    gateway: Gateway, agent: Agent, era: str
) -> None:
    result = await kept(gateway, agent.tenant, policy=ToolPolicy(shared=True))
    cursor = (await agent.call("result_read", {"handle": result.handle})).value["next_cursor"]
    async with fastmcp_agent(gateway.url, era) as stranger:
        theirs = (await stranger.call("result_read", {"handle": result.handle})).error
        nobodys = (await stranger.call("result_read", {"handle": "r_" + "0" * 22})).error
        assert theirs == nobodys
        assert theirs["code"] == "CWM-2005"
        queried = (await stranger.call("result_query", {"handle": result.handle, "head": 1})).error
        assert queried == nobodys
        stolen = (await stranger.call("result_read", {"cursor": cursor})).error
        assert (stolen["code"], stolen["context"]["reason"]) == ("CWM-1003", "foreign")


async def test_another_users_result_is_read_only_where_it_is_shared(gateway: Gateway, agent: Agent) -> None:
    private = await kept(gateway, agent.tenant, subject="somebody else")
    shared = await kept(gateway, agent.tenant, subject="somebody else", policy=ToolPolicy(shared=True))
    assert (await agent.call("result_read", {"handle": private.handle})).error["code"] == "CWM-2005"
    assert (await agent.call("result_read", {"handle": shared.handle})).value["page"] == 1


async def test_a_result_and_its_parts_are_resources(gateway: Gateway, agent: Agent) -> None:
    result = await kept(gateway, agent.tenant)
    whole = await agent.client.read_resource(f"cwm://results/{result.handle}")
    assert [content.mime_type for content in whole] == ["application/json", "text/plain", "image/png"]
    assert (whole[0].text, whole[1].text, base64.b64decode(whole[2].blob)) == (ROWS, LOG, IMAGE)
    (part,) = await agent.client.read_resource(f"cwm://results/{result.handle}/1")
    assert part.text == LOG
    templates = {str(each.uri_template) for each in await agent.client.list_resource_templates()}
    assert templates >= {"cwm://results/{handle}", "cwm://results/{handle}/{part}"}


async def test_a_large_result_is_not_read_whole_and_the_refusal_says_how_to_read_it(
    tmp_path: Path, era: str
) -> None:
    limit = StoredResults(result_resource_mb=0.05)
    async with (
        running_gateway(tmp_path, stored_results=limit) as gateway,
        fastmcp_agent(gateway.url, era) as agent,
    ):
        result = await kept(gateway, agent.tenant)
        for path, size in (("", len(ROWS) + len(LOG.encode()) + len(IMAGE)), ("/1", len(LOG.encode()))):
            with pytest.raises(
                MCPError, match="result_read, or find something in it with result_query"
            ) as refused:
                await agent.client.read_resource(f"cwm://results/{result.handle}{path}")
            error = refused.value.error.data
            assert (error["code"], error["retryable"], error["context"]["size_bytes"]) == (
                "CWM-1003",
                False,
                size,
            )
        (image,) = await agent.client.read_resource(f"cwm://results/{result.handle}/2")
        assert base64.b64decode(image.blob) == IMAGE


@pytest.mark.parametrize("uri", ["cwm://results/r_0", "cwm://results/HANDLE/3", "cwm://results/HANDLE/x"])
async def test_a_resource_that_is_not_there_is_a_coded_error(
    gateway: Gateway, agent: Agent, uri: str
) -> None:
    result = await kept(gateway, agent.tenant)
    with pytest.raises(MCPError) as refused:
        await agent.client.read_resource(uri.replace("HANDLE", result.handle))
    assert refused.value.error.data["code"] in {"CWM-2005", "CWM-1003"}


@pytest.mark.slow
@pytest.mark.parametrize("era", [LEGACY, MODERN])
async def test_a_result_of_one_gateway_is_read_on_at_another_over_one_valkey(
    tmp_path: Path, redis_url: str, era: str
) -> None:
    shared = Shared(shared_store_url=redis_url)
    for folder in (tmp_path / "one", tmp_path / "other"):
        folder.mkdir()
    async with (
        running_gateway(tmp_path / "one", shared=shared) as one,
        running_gateway(tmp_path / "other", shared=shared) as other,
        fastmcp_agent(one.url, era) as here,
        fastmcp_agent(other.url, era, here.tenant) as there,
    ):
        result = await kept(one, here.tenant)
        read, asked, turn = "", {"handle": result.handle, "part": 1}, 0
        while True:
            page = (await (here, there)[turn % 2].call("result_read", asked)).value
            if page["part"] != 1:
                break
            read, asked, turn = read + page["text"], {"cursor": page["next_cursor"]}, turn + 1
        assert read == LOG
        assert turn > 5


@pytest.mark.slow
async def test_a_result_outlives_the_gateway_that_kept_it(tmp_path: Path, era: str) -> None:
    async with running_gateway(tmp_path) as before, fastmcp_agent(before.url, era) as agent:
        result = await kept(before, agent.tenant)
        page = (await agent.call("result_read", {"handle": result.handle})).value
    async with running_gateway(tmp_path) as after, fastmcp_agent(after.url, era, agent.tenant) as agent:
        again = (await agent.call("result_read", {"handle": result.handle})).value
        assert again["text"] == page["text"]
        going_on = (await agent.call("result_read", {"cursor": page["next_cursor"]})).value
        assert going_on["start_byte"] == page["end_byte"]
