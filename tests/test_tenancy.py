"""Whatever B asks for that is A's, by whichever way in: nothing is seen, changed, or told apart from unknown.

A and B are two tenants, or two users of one: then A's session ids are taken for B too, and shared context is shared.

Tools, resources and routes are those that the running gateway has; one that is new fails here until it is said
what of A's it could be asked for.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx2
import pytest
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from mcp import MCPError
from starlette.routing import Mount, Route

from cwm.domain.record_quota import RecordQuota
from cwm.services.access import limits
from cwm.settings import Database
from cwm.transport.console.actions.offered import ACTIONS
from cwm.transport.console.turns import conversations
from cwm.transport.console.views import Asked
from tests.eventually import eventually
from tests.tenancy import NOBODY, A, B, TwoTenants, alike, told, two_tenants
from tests.transport.mcp.gateway import LEGACY, MODERN, fastmcp_agent
from tests.transport.mcp.wire import LIST, Wire, wired

pytestmark = pytest.mark.slow

SCOPES: Final = ("session", "tenant", "workspace")
SCOPES_OF_A_USER: Final = ("session",)
# Arguments that name nothing which could be another's, and what to send in them where one is needed.
NAMELESS: Final[Mapping[str, Any]] = {
    "accept_template": None,
    "action": None,
    "all_sessions": True,
    "all_tags": None,
    "before": None,
    "branch_token": None,
    "canary": False,
    "component": None,
    "context": None,
    "continuation_prompt": None,
    "count": None,
    "created_after": None,
    "created_before": None,
    "delete_blocks": True,
    "description": None,
    "force": True,
    "format": None,
    "head": None,
    "if_version": None,
    "immutable": None,
    "include_blocks": True,
    "include_messages": True,
    "include_tokens": True,
    "jmespath": None,
    "json_pointer": "",
    "keep_session": None,
    "limit": None,
    "max_items": None,
    "max_tokens": None,
    "message_format": None,
    "messages": None,
    "metadata": None,
    "offset": None,
    "page": None,
    "part": 0,
    "priority": None,
    "regex": None,
    "retention": None,
    "seed": None,
    "sort_by": None,
    "sort_order": None,
    "state_filter": None,
    "stop": None,
    "tail": None,
    "temperature": None,
    "text": "hey",
    "tools": None,
    "top_p": None,
    "ttl": None,
    "ttl_seconds": None,
    "timeout_seconds": None,
    "undo": None,
    "value": "b's",
    "verify": None,
    "version": None,
    "visibility": "tenant",
    "wait": None,
}
# Ways of naming what is asked for, of which a call takes one.
EITHER: Final[Mapping[str, tuple[str, ...]]] = {
    "window_status": ("session_id", "window_name"),
    "turn_log": ("session_id", "window_name"),
    "turn_show": ("turn", "session_id", "window_name"),
    "turn_left_out": ("turn", "session_id"),
    "turn_search": ("session_id", "window_name", "cursor"),
    "result_read": ("handle", "cursor"),
}
# What the person asks who runs the gateway, about all of it.
OPERATORS: Final = {"/reconcile"}
PUBLIC: Final = {"/healthz", "/openapi.json", "/readyz", "/metrics"}
OWN_RECORD: Final = {"/console/audit"}
# What does not end by itself is listened to in a test of its own.
STREAMS: Final = {"/console/events"}
TURN: Final = {"model": "fake", "prompt": "hey", "max_tokens": 1}
METHODS: Final = ("GET", "POST", "PUT", "DELETE")


@pytest.fixture(
    scope="module", params=[(who, where) for who in ("tenants", "users") for where in ("sqlite", "postgres")]
)
async def tenants(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    migrated_postgres_url: str,
    valkey_server: Any,
) -> AsyncIterator[TwoTenants]:
    """On SQLite with what is in process, and on Postgres with Valkey."""
    who, where = request.param
    folder: Path = tmp_path_factory.mktemp("tenants")
    database, redis_url = Database(db_path=folder / "cwm.db"), None
    if where == "postgres":
        database, redis_url = Database(database_url=migrated_postgres_url), valkey_server.connection_url
    async with two_tenants(folder, database, redis_url, of_one=who == "users") as both:
        yield both


@pytest.fixture(params=[LEGACY, MODERN])
async def b(request: pytest.FixtureRequest, tenants: TwoTenants) -> AsyncIterator[Client[Any]]:
    transport = StreamableHttpTransport(f"{tenants.url}/mcp", headers={"x-tenant": B})
    async with Client(transport, mode=request.param) as client:
        yield client


@pytest.fixture(autouse=True)
def _patient_and_unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search ends with what there is, and counts are read, however busy the machine. Each refusal is recorded, however many there are."""
    monkeypatch.setattr(conversations, "_SEARCH_SECONDS", 600.0)
    monkeypatch.setattr(limits, "_PATIENCE_SECONDS", 600.0)
    monkeypatch.setattr(RecordQuota, "take", lambda *_: True)


@pytest.fixture(autouse=True)
async def _nothing_of_a_changes(tenants: TwoTenants) -> AsyncIterator[None]:
    before = await tenants.everything_of_a()
    assert sum(map(len, before.values())) > 15
    yield
    assert await tenants.everything_of_a() == before


REFUSED: Final = re.compile(r"CWM-(20\d\d|3001|3003|3009|9002)\b")
"""The code of a name that names nothing for the caller, is taken, or is not for it."""


async def refused_once(tenants: TwoTenants, ask: Callable[[], Awaitable[str]]) -> str:
    """The answer. If it refuses what may be somebody else's, that is one record."""
    before = await tenants.records_of_b()
    answer = await ask()
    if REFUSED.search(answer):
        assert await tenants.records_of_b() == before + 1, answer
    return answer


def taken(tenants: TwoTenants, answer: str) -> bool:
    """Whether B asked for a name that A, a user of the same tenant, has: all that B learns."""
    return tenants.of_one and "There is a session '<asked>' already." in answer


def cases(
    tool: str, schema: Mapping[str, Any], names: Mapping[str, str], scopes: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """The calls that name all that a tool can be asked for, for each scope and each way of naming."""
    fields = schema.get("properties", {})
    unsaid = [name for name in fields if name not in NAMELESS and name not in names and name != "scope"]
    assert not unsaid, f"{tool} takes {unsaid}: which of A's things could be named by it?"
    named = {name: [names[name]] if name == "tags" else names[name] for name in fields if name in names}
    fixed = {name: NAMELESS[name] for name in fields if NAMELESS.get(name) is not None}
    either = EITHER.get(tool, ())
    scopes = [names["workspace"] if scope == "workspace" else scope for scope in scopes]
    for one, scope in itertools.product(either or [""], scopes if "scope" in fields else [""]):
        others = {name: value for name, value in named.items() if name == one or name not in either}
        yield {**fixed, **others, **({"scope": scope} if scope else {})}
    for name, value in named.items():
        # Alone as well: beside another's handle a name is not looked at.
        if name not in schema.get("required", ()) and not either:
            required = {key: each for key, each in named.items() if key in schema.get("required", ())}
            yield {**fixed, **required, name: value}


async def answered(client: Client[Any], tool: str, arguments: dict[str, Any]) -> str:
    result = await client.call_tool_mcp(tool, arguments)
    return json.dumps(
        [result.is_error, [block.model_dump(mode="json") for block in result.content], result.meta]
    )


async def test_no_tool_tells_or_touches_what_is_anothers(tenants: TwoTenants, b: Client[Any]) -> None:
    tools = await b.list_tools()
    assert len(tools) >= 24
    for tool in tools:
        for_a = cases(tool.name, tool.input_schema, tenants.owned, _scopes(tenants))
        for_nobody = cases(tool.name, tool.input_schema, tenants.unknown, _scopes(tenants))
        for asked, unasked in zip(for_a, for_nobody, strict=True):
            of_a = await refused_once(tenants, partial(answered, b, tool.name, asked))
            of_nobody = await refused_once(tenants, partial(answered, b, tool.name, unasked))
            same = alike(of_a, tenants.owned), alike(of_nobody, tenants.unknown)
            assert same[0] == same[1] or asked == unasked or taken(tenants, same[0]), f"{tool.name} {asked}"
            assert A not in same[0]
        await forget(b)


def _scopes(tenants: TwoTenants) -> Sequence[str]:
    return SCOPES_OF_A_USER if tenants.of_one else SCOPES


async def forget(b: Client[Any]) -> None:
    """B's own things of the same names, so that each tool finds B with nothing."""
    listed = await b.call_tool_mcp("session_list", {"limit": 100})
    for session in (listed.structured_content or {})["sessions"]:
        await b.call_tool_mcp("session_delete", {"session_id": session["id"]})
    for scope in ("tenant", f"workspace:{A}", f"workspace:{NOBODY}"):
        listed = await b.call_tool_mcp("context_list", {"scope": scope})
        for entry in (listed.structured_content or {})["entries"]:
            await b.call_tool_mcp("context_delete", {"key": entry["key"], "scope": scope})


async def test_lists_hold_nothing_of_anothers(tenants: TwoTenants, b: Client[Any]) -> None:
    for tool in await b.list_tools():
        if not tool.input_schema.get("required") and tool.name not in EITHER:
            assert A not in await answered(b, tool.name, {}), tool.name
    assert A not in await answered(b, "turn_log", {"all_tags": True})


def spelled(template: str, names: Mapping[str, str], scopes: Sequence[str]) -> Iterator[str]:
    """The URIs that a template makes of the names."""
    scopes = [names["workspace"] if scope == "workspace" else scope for scope in scopes]
    for scope in scopes if "{scope}" in template else [""]:
        uri = template.replace("{scope}", scope).replace("{part}", "0")
        for field in ("handle", "key", "turn"):
            uri = uri.replace(f"{{{field}}}", names[field]).replace(f"{{{field}*}}", names[field])
        uri = uri.replace("{?cursor}", f"?cursor={names['cursor']}")
        assert "{" not in uri, f"{template}: which of A's things could be named by it?"
        yield uri


async def read(client: Client[Any], uri: str) -> str:
    try:
        contents = await client.read_resource(uri)
    except MCPError as refused:
        return json.dumps(refused.error.model_dump(mode="json"))
    return json.dumps([content.model_dump(mode="json") for content in contents])


async def test_no_resource_tells_what_is_anothers(tenants: TwoTenants, b: Client[Any]) -> None:
    resources, templates = await b.list_resources(), await b.list_resource_templates()
    assert len(resources) >= 4
    assert len(templates) >= 3
    for resource in resources:
        assert A not in await read(b, str(resource.uri))
    for template in templates:
        for of_a, of_nobody in zip(
            spelled(template.uri_template, tenants.owned, _scopes(tenants)),
            spelled(template.uri_template, tenants.unknown, _scopes(tenants)),
            strict=True,
        ):
            answers = (
                alike(await refused_once(tenants, partial(read, b, of_a)), tenants.owned),
                alike(await refused_once(tenants, partial(read, b, of_nobody)), tenants.unknown),
            )
            assert answers[0] == answers[1], of_a
            assert A not in answers[0]
            prefix = f"{of_a.rpartition('/')[0]}/*"
            if "context" in of_a:
                assert " value" not in await read(b, prefix)
    assert await b.list_prompts() == []


async def test_an_agent_session_of_anothers_opens_no_door(tenants: TwoTenants) -> None:
    async with wired(tenants.url) as wire:
        for name in ("mcp-session-id", "agent_session"):
            for method in ("POST", "GET", "DELETE"):
                of_a, of_nobody = [
                    await _in_session(wire, method, names[name]) for names in (tenants.owned, tenants.unknown)
                ]
                assert of_a.status_code == 404
                assert told(of_a) == told(of_nobody)
        still = await wire.post(LIST, mcp_session_id=tenants.owned["mcp-session-id"], x_tenant=A)
        assert still.status_code == 200


async def _in_session(wire: Wire, method: str, session_id: str) -> httpx2.Response:
    headers = {"mcp_session_id": session_id, "x_tenant": B}
    if method == "POST":
        return await wire.post(LIST, **headers)
    return await (wire.get(**headers) if method == "GET" else wire.end(**headers))


async def test_what_another_writes_is_told_to_nobody_else(tenants: TwoTenants) -> None:
    """B listens to keys that are named as A's are; the first it hears of is its own."""
    if tenants.of_one:
        pytest.skip("Users of one tenant hear of its keys.")
    key = "heard/of"
    async with wired(tenants.url) as wire:
        transports = [
            StreamableHttpTransport(f"{tenants.url}/mcp", headers={"x-tenant": who}) for who in ("third", B)
        ]
        async with (
            wire.listen(
                {"resourceSubscriptions": [f"cwm://context/tenant/{key}", "cwm://context/tenant/mine"]},
                x_tenant=B,
            ) as stream,
            Client(transports[0], mode=MODERN) as third,
            Client(transports[1], mode=MODERN) as b,
        ):
            await third.call_tool("context_set", {"key": key, "value": 1, "scope": "tenant"})
            await b.call_tool("context_set", {"key": "mine", "value": 1, "scope": "tenant"})
            heard = await stream.message()
            assert heard["params"]["uri"] == "cwm://context/tenant/mine"


async def test_what_another_does_is_told_to_no_page_of_somebody_else(tenants: TwoTenants) -> None:
    """B hears of its own turn, and of nobody else's before that: not of another tenant, not of a user's private session."""
    live, heard = tenants.parts.services.live, list[str]()
    async with (
        httpx2.AsyncClient(base_url=tenants.url, trust_env=False, timeout=30) as http,
        fastmcp_agent(tenants.url, MODERN, "third") as third,
        fastmcp_agent(tenants.url, MODERN, B) as b,
    ):
        for agent, session_id in ((third, "third-live"), (b, f"{B}-live")):
            await agent.call("session_create", {"session_id": session_id})
        async with http.stream("GET", "/console/events", headers={"x-tenant": B}) as stream:
            await eventually(lambda: len(live) == 1)
            await live.look()
            for agent, session_id in ((third, "third-live"), (b, f"{B}-live")):
                await agent.call("session_generate", {"session_id": session_id, "text": "hey"})
                await live.look()
            async for line in stream.aiter_lines():
                heard += [line] if line.startswith("data: ") else []
                if f"{B}-live" in line:
                    break
    assert heard == [f'data: {{"kind":"conversations","ids":["{B}-live"]}}']


def routes(tenants: TwoTenants) -> dict[str, set[str]]:
    """Of everything but MCP, by path; ``{…}`` stands for what a client makes up."""
    found = {r.path: set(r.methods or ()) for r in tenants.app.routes if isinstance(r, Route)}
    mounted = [r for r in tenants.app.routes if isinstance(r, Mount)]
    assert [mount.path for mount in mounted] == [""]
    return found


# What a part of a path is that has another name than an argument.
PARTS: Final = {"scope": "workspace", "rest": "window_name", "file": "window_name"}


def named(path: str, names: Mapping[str, str]) -> str:
    """The path with all that it can be asked for. KeyError for a part of which it is not said what of A's it could name."""
    parts = {part: names[PARTS.get(part, part)] for part in re.findall(r"{(\w+)(?::path)?}", path)}
    return re.sub(r"{(\w+)(?::path)?}", lambda found: parts[found[1]], path)


def bodies(path: str, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """What is sent there: all that a body can refer to."""
    if path.rstrip("/") != "/v1/responses":
        return [TURN]
    said = {"model": "fake", "input": "hey"}
    return [
        {**said, "previous_response_id": names["response"]},
        {**said, "conversation": names["conversation"]},
        {**said, "input": [{"type": "item_reference", "id": names["item"]}]},
    ]


async def test_no_route_tells_or_touches_what_is_anothers(tenants: TwoTenants) -> None:
    paths = set(routes(tenants))
    assert paths >= OPERATORS | PUBLIC | STREAMS
    async with httpx2.AsyncClient(base_url=tenants.url, trust_env=False, timeout=60) as http:

        async def ask(method: str, path: str, names: Mapping[str, str], body: Any) -> httpx2.Response:
            headers = {"x-tenant": B, "cwm-session-id": names["cwm-session-id"]}
            return await http.request(method, named(path, names), headers=headers, json=body)

        for path, method in itertools.product(sorted(paths - OPERATORS - STREAMS), METHODS):
            both = (tenants.owned, tenants.unknown)
            sent = [[None] if method == "GET" else bodies(path, names) for names in both]
            for each in zip(*sent, strict=True):
                answers = []
                for names, body in zip(both, each, strict=True):

                    async def work(names: Mapping[str, str] = names, body: Any = body) -> str:
                        answers.append(await ask(method, path, names, body))  # noqa: B023 - asked at once
                        # A page that lists refusals, and what nobody has to be known for, are none.
                        return "" if path in OWN_RECORD | PUBLIC else answers[-1].text  # noqa: B023

                    await refused_once(tenants, work)
                # An audit tells B what B itself asked for, here or in a test before.
                asked = [*both] if path in OWN_RECORD else []
                of_a, of_nobody = (
                    alike(told(answer), *(asked or [names]))
                    for answer, names in zip(answers, both, strict=True)
                )
                assert A not in of_a, f"{method} {path}"
                assert path in PUBLIC or of_a == of_nobody or taken(tenants, of_a), f"{method} {path}"
                assert answers[0].status_code < 500 or path == "/readyz"


CONTINUED: Final = ("window:{window_name}", "session:{session_id}", "turn:{turn}", "turn:tag:{tag}")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages"])
async def test_no_turn_goes_on_from_what_is_anothers(tenants: TwoTenants, path: str) -> None:
    body = {"model": "fake", "messages": [{"role": "user", "content": "hey"}], "max_tokens": 1}
    async with fastmcp_agent(tenants.url, MODERN, B) as b:
        await forget(b.client)
    async with httpx2.AsyncClient(base_url=tenants.url, trust_env=False, timeout=60) as http:
        for form in CONTINUED:
            answers = []
            for names in (tenants.owned, tenants.unknown):
                headers = {"x-tenant": B, "cwm-continue": form.format_map(names)}

                async def work(headers: Mapping[str, str] = headers) -> str:
                    answers.append(await http.post(path, headers=headers, json=body))  # noqa: B023 - asked at once
                    return answers[-1].text  # noqa: B023

                await refused_once(tenants, work)
            of_a, of_nobody = alike(told(answers[0]), tenants.owned), alike(told(answers[1]), tenants.unknown)
            assert answers[0].status_code in range(400, 500)
            assert of_a == of_nobody
            assert A not in of_a


async def test_no_action_is_done_to_what_is_anothers(tenants: TwoTenants) -> None:
    own = {"x-tenant": B, "origin": tenants.url}
    async with (
        httpx2.AsyncClient(base_url=tenants.url, trust_env=False, timeout=60) as http,
        fastmcp_agent(tenants.url, MODERN, B) as b,
    ):
        await b.call("session_create", {"session_id": f"{B}-form"})
        page = await http.get(f"/console/conversations/{B}-form/delete", headers=own)
        (token,) = set(re.findall(r'name="form_token" value="([^"]+)"', page.text))
        for action in ACTIONS:
            answers = []
            for names in (tenants.owned, tenants.unknown):

                async def work(path: str = f"/console{named(action, names)}") -> str:
                    form = {"form_token": token, "revision": "0"}
                    answers.append(await http.post(path, headers=own, data=form))  # noqa: B023 - asked at once
                    return answers[-1].text  # noqa: B023

                await refused_once(tenants, work)
            of_a, of_nobody = alike(told(answers[0]), tenants.owned), alike(told(answers[1]), tenants.unknown)
            assert of_a == of_nobody, action
            assert A not in of_a
        await b.call("session_delete", {"session_id": f"{B}-form"})


PAGES: Final = (
    "/console/compare?left={left}&right={right}",
    "/console/compare?left=window:{window_name}&right=tag:{tag}",
    "/console/conversations?q={query}",
    "/console/windows?q={search}",
    "/console/context/{workspace}?q={prefix}",
    "/console/context/tenant?after={after}",
    "/console/results?after={handle}",
    "/console/keys?after={key_id}",
    "/console/audit?session={session_id}&window={window_name}&verify=1",
)
"""Pages that are asked about something in their query."""


# By the name of a field of a query: what of A's could be named in it.
QUERIED: Final[Mapping[str, tuple[str, ...]]] = {
    "q": ("query", "search", "prefix"),
    "after": ("after", "handle", "key_id", "cursor"),
    "session": ("session_id",),
    "window": ("window_name",),
    "left": ("left",),
    "right": ("right",),
    **dict.fromkeys(("as", "before", "event", "outcome", "state", "subject", "upto", "verify"), ()),
}


async def queries(tenants: TwoTenants, http: httpx2.AsyncClient) -> set[tuple[str, str]]:
    """Which field each page of the console reads of its query, seen as the pages are asked for."""
    seen = set[tuple[str, str]]()

    def noted(read: Any) -> Any:
        def noting(asked: Asked, name: str) -> Any:
            # Of the page that is asked for just now.
            seen.add((path, name))
            return read(asked, name)

        return noting

    with pytest.MonkeyPatch.context() as patched:
        for name in ("text", "number"):
            patched.setattr(Asked, name, noted(getattr(Asked, name)))
        for path in routes(tenants):
            if path.startswith("/console") and path not in STREAMS:
                await http.get(named(path, tenants.unknown), headers={"x-tenant": B})
    return seen


async def test_no_page_tells_what_is_anothers_by_its_query(tenants: TwoTenants) -> None:
    async with httpx2.AsyncClient(base_url=tenants.url, trust_env=False, timeout=60) as http:
        fields = await queries(tenants, http)
        assert fields
        generated = [
            f"{path.replace('{scope}', '{workspace}')}?{field}={{{name}}}"
            for path, field in sorted(fields)
            for name in QUERIED[field]
        ]
        for page in (*PAGES, *generated):
            of_a, of_nobody = [
                await http.get(
                    page.format(**{name: quote(value) for name, value in names.items()}),
                    headers={"x-tenant": B},
                )
                for names in (tenants.owned, tenants.unknown)
            ]
            assert of_a.status_code in {200, 400, 403, 404}, page
            is_own = page.partition("?")[0] in OWN_RECORD and page not in PAGES
            asked = [tenants.owned, tenants.unknown]
            answers = [
                alike(told(answer), *(asked if is_own else [names]))
                for answer, names in zip((of_a, of_nobody), asked, strict=True)
            ]
            assert answers[0] == answers[1] or is_own, page
            assert A not in answers[0]
