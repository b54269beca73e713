"""Changes and refusals are records: of every tool, route and action that there is.

They are taken from the running gateway. One that is new fails here until it is said what it records, and done once.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from starlette.routing import Route

from cwm.adapters.sql import schema
from cwm.app import assemble
from cwm.domain.access import EVERY, OF_AN_AGENT
from cwm.domain.principal import Principal
from cwm.domain.upstream_tools import version_of
from cwm.settings import ABSENT, Database, Engine, Isolation, Limits, Retention, Settings
from cwm.settings.auth import Auth
from cwm.settings.engines import EngineEntry
from cwm.transport.console.actions.offered import ACTIONS
from cwm.transport.llm.endpoint import Endpoint
from cwm.wiring.parts import Parts, build_parts
from tests.adapters.upstream.bad_server import bad_server
from tests.adapters.vllm.fake_vllm import fake_vllm
from tests.transport.console.actions.conftest import proposed
from tests.transport.console.reading import Document
from tests.transport.console.test_upstreams import a_tool, offering
from tests.transport.mcp.gateway import MODERN, serving

AUDIT_PAGE: Final = Path(__file__).parents[1] / "docs" / "audit.md"
OPERATOR: Final = Principal("default", "local", EVERY)

UNRECORDED_TOOLS: Final = {
    **dict.fromkeys(
        ("context_set", "context_delete", "context_snapshot", "context_restore"), "shared context"
    ),
    **dict.fromkeys(("agent_session_create", "agent_session_end"), "the client's own connection"),
}
_A_TURN: Final = "a turn is a record itself, in the tree of its session"
_NO_CHANGE: Final = "it changes nothing"
UNRECORDED_ROUTES: Final = {
    **dict.fromkeys(
        (
            "POST /v1/chat/completions",
            "POST /v1/completions",
            "POST /v1/messages",
            "POST /v1/responses",
        ),
        _A_TURN,
    ),
    "POST /v1/messages/count_tokens": _NO_CHANGE,
    "POST /v1/responses/compact": _NO_CHANGE,
    "POST /v1/responses/input_tokens": _NO_CHANGE,
    "POST /v1/responses/{response}/cancel": _NO_CHANGE,
    "POST /console/doctor": _NO_CHANGE,
    **dict.fromkeys(
        (
            "POST /v1/embeddings",
            "POST /v1/score",
            "POST /score",
            "POST /v1/rerank",
            "POST /v2/rerank",
            "POST /rerank",
            "POST /pooling",
            "POST /classify",
        ),
        _NO_CHANGE,
    ),
}


class Said:
    """Callers are who they say they are; only right in a test."""

    async def authenticate(self, headers: Mapping[str, str]) -> Principal:
        if headers.get("authorization", "").startswith("Bearer"):
            return OPERATOR
        subject = headers.get("x-subject", "local")
        return Principal(
            headers.get("x-tenant", "default"), subject, EVERY if subject == "local" else OF_AN_AGENT
        )


@dataclass(frozen=True)
class House:
    """A gateway with two engines, in whose own tenant ``local`` runs it; its client over HTTP, and over MCP."""

    url: str
    parts: Parts
    app: Any
    http: httpx2.AsyncClient
    agent: Client[Any]
    numbers: Any

    def name(self, noun: str) -> str:
        return f"{noun}-{next(self.numbers)}"

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.agent.call_tool_mcp(tool, arguments)
        assert not result.is_error, result.content
        return dict(result.structured_content or {})

    async def session(self) -> str:
        """A session of two turns, which its owner alone sees."""
        session_id = self.name("session")
        await self.call("session_create", session_id=session_id, visibility="private")
        for text in ("hey", "go on"):
            await self.call("session_generate", session_id=session_id, text=text, max_tokens=2)
        return session_id

    async def turns(self, session_id: str) -> list[str]:
        """The first is the newest."""
        return [each["id"] for each in (await self.call("turn_log", session_id=session_id))["turns"]]

    async def turn(self) -> str:
        """One that is neither current nor holds anything."""
        session_id = await self.session()
        newest, before = await self.turns(session_id)
        await self.call("turn_revert", turn=before)
        return newest

    async def tag(self) -> str:
        tag = self.name("tag")
        await self.call("turn_tag", tag=tag, turn=await self.turn())
        return tag

    async def window(self) -> str:
        window = self.name("window")
        session_id = await self.session()
        await self.call(
            "window_freeze",
            session_id=session_id,
            window_name=window,
            keep_session=True,
            visibility="private",
            ttl_seconds=86_400,
        )
        return window

    async def frozen(self) -> str:
        session_id = await self.session()
        await self.call("window_freeze", session_id=session_id, window_name=self.name("window"))
        return session_id

    async def response(self) -> str:
        return str((await self.sent("POST", "/v1/responses", {"model": "fake", "input": "hey"}))["id"])

    async def conversation(self) -> dict[str, str]:
        items = [{"role": "user", "content": "hey"}]
        conversation = (await self.sent("POST", "/v1/conversations", {"items": items}))["id"]
        listed = await self.sent("GET", f"/v1/conversations/{conversation}/items")
        return {"conversation": conversation, "item": listed["data"][0]["id"]}

    async def key(self) -> str:
        key, _ = await self.parts.services.keys.create(OPERATOR, self.name("key"), OF_AN_AGENT, None)
        return key.key_id

    async def elsewhere(self, session_id: str) -> str:
        session = await self.parts.base.registry.session("default", session_id)
        assert session is not None
        return "two" if session.engine == "one" else "one"

    async def drained(self) -> str:
        await self.call("engine_drain", engine="two")
        return "two"

    async def sent(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self.http.request(method, path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def records(self, tenant: str = "default") -> Counter[tuple[str, str, str]]:
        """How many there are of each event, outcome and subject."""
        found = await self.parts.base.trail.newest(tenant, 10_000)
        return Counter((each.event.event, each.event.outcome, each.event.subject) for each in found)

    async def acts(self, path: str, given: Mapping[str, Any]) -> None:
        """An action of the console in its two steps."""
        page = Document((await self.http.get(f"/console{path}")).text)
        fields = {**proposed(page), **given}
        own = {"origin": self.url}
        answer = await self.http.post(f"/console{path}", data=fields, headers=own)
        assert answer.status_code in {200, 303}, answer.text


@pytest.fixture(scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        engines = {name: await stack.enter_async_context(fake_vllm()) for name in ("one", "two")}
        settings = Settings(
            database=Database(db_path=tmp_path_factory.mktemp("audited") / "cwm.db"),
            engine=Engine(lmcache_url=ABSENT, coordinator_url=ABSENT),
            engines={
                name: EngineEntry(vllm_url=each.url, lmcache_url=ABSENT, coordinator_url=ABSENT)
                for name, each in engines.items()
            },
            isolation=Isolation(secret="a test's secret"),
            retention=Retention(reconcile_seconds=86_400, patrol_windows=0),
            auth=Auth(api_keys=True),
            limits=Limits(rate_limit_session="none", rate_limit_principal="none", rate_limit_lists="none"),
        )
        await schema.upgrade(settings.database.url())
        built = build_parts(settings)
        await stack.enter_async_context(built.close())
        access = replace(built.base.access, identity=Said())
        parts = replace(built, base=replace(built.base, access=access))
        app = assemble(settings, parts)
        url = await stack.enter_async_context(serving(app, app.state.end_streams))
        http = await stack.enter_async_context(httpx2.AsyncClient(base_url=url, trust_env=False, timeout=60))
        transport = StreamableHttpTransport(f"{url}/mcp")
        agent = await stack.enter_async_context(Client(transport, mode=MODERN))
        yield House(url, parts, app, http, agent, count())


Make = Callable[[House], Awaitable[Mapping[str, Any]]]


def of(**makers: Any) -> Make:
    """Values, and what makes values of a house."""

    async def make(house: House) -> dict[str, Any]:
        return {name: await each(house) if callable(each) else each for name, each in makers.items()}

    return make


async def fresh(house: House) -> str:
    return house.name("fresh")


async def _moved(house: House) -> dict[str, str]:
    session_id = await house.session()
    return {"session_id": session_id, "engine": await house.elsewhere(session_id)}


async def _of_a_key(house: House) -> dict[str, str]:
    return {"key_id": await house.key()}


TOOLS: Final[Mapping[str, tuple[str, Make]]] = {
    "session_create": ("session_create", of(session_id=fresh)),
    "session_generate": ("session_generate", of(session_id=House.session, text="hey", max_tokens=2)),
    "session_delete": ("session_delete", of(session_id=House.session)),
    "session_unfreeze": ("session_unfreeze", of(session_id=House.frozen)),
    "session_merge": ("session_merge", of(session_id=House.session, into_session=House.session)),
    "session_share": ("session_share", of(session_id=House.session, visibility="tenant")),
    "session_move": ("session_move", _moved),
    "window_freeze": ("window_freeze", of(session_id=House.session, window_name=fresh)),
    "window_thaw": ("window_thaw", of(window_name=House.window)),
    "window_clone": ("window_clone", of(source_window=House.window, target_window=fresh)),
    "window_rename": ("window_rename", of(window_name=House.window, new_name=fresh)),
    "window_share": ("window_share", of(window_name=House.window, visibility="tenant")),
    "window_delete": ("window_delete", of(window_name=House.window)),
    "turn_branch": ("turn_branch", of(turn=House.turn)),
    "turn_revert": ("turn_revert", of(turn=House.turn)),
    "turn_tag": ("turn_tag", of(turn=House.turn, tag=fresh)),
    "turn_delete": ("turn_delete", of(turn=House.turn)),
    "engine_drain": ("engine_drain", of(engine="two")),
    "engine_upgrade": ("engine_upgrade", of(model="fake", to="one")),
}
"""What each tool that changes something records, and with which arguments it does."""

ROUTES: Final[Mapping[str, tuple[str, Make, Any]]] = {
    "DELETE /v1/responses/{response}": ("response_delete", of(response=House.response), None),
    "POST /v1/conversations": ("conversation_create", of(), {}),
    "POST /v1/conversations/{conversation}": (
        "conversation_update", House.conversation, {"metadata": {"a": "b"}},
    ),
    "DELETE /v1/conversations/{conversation}": ("conversation_delete", House.conversation, None),
    "POST /v1/conversations/{conversation}/items": (
        "conversation_add_items", House.conversation, {"items": [{"role": "user", "content": "on"}]},
    ),
    "DELETE /v1/conversations/{conversation}/items/{item}": (
        "conversation_delete_item", House.conversation, None,
    ),
    "POST /reconcile": ("reconcile", of(), {"dry_run": False}),
}  # fmt: skip

ENTRANCE: Final = {
    "POST /console/sign-in": "console_sign_in",
    "POST /console/sign-out": "console_sign_out",
    "POST /console/tenant": "console_tenant",
}
"""Done together, since one needs the other."""

DONE: Final[Mapping[str, tuple[str, Make, Make]]] = {
    "/conversations/{session_id}/freeze": ("window_freeze", of(session_id=House.session), of(name=fresh)),
    "/conversations/{session_id}/unfreeze": ("session_unfreeze", of(session_id=House.frozen), of()),
    "/conversations/{session_id}/move": ("session_move", of(session_id=House.session), of()),
    "/conversations/{session_id}/delete": ("session_delete", of(session_id=House.session), of()),
    "/turns/{turn}/branch": ("turn_branch", of(turn=House.turn), of(session_id=fresh)),
    "/turns/{turn}/freeze": ("window_freeze", of(turn=House.turn), of(name=fresh)),
    "/turns/{turn}/tag": ("turn_tag", of(turn=House.turn), of(tag=fresh)),
    "/turns/{turn}/revert": ("turn_revert", of(turn=House.turn), of()),
    "/turns/{turn}/delete": ("turn_delete", of(turn=House.turn), of()),
    "/windows/{window_name}/thaw": ("window_thaw", of(window_name=House.window), of()),
    "/windows/{window_name}/clone": ("window_clone", of(window_name=House.window), of(name=fresh)),
    "/windows/{window_name}/rename": ("window_rename", of(window_name=House.window), of(name=fresh)),
    "/windows/{window_name}/extend": ("window_extend", of(window_name=House.window), of()),
    "/windows/{window_name}/delete": ("window_delete", of(window_name=House.window), of()),
    "/engines/{engine}/drain": ("engine_drain", of(engine="two"), of()),
    "/engines/{engine}/undrain": ("engine_undrain", of(engine=House.drained), of()),
    "/keys/create": ("key.create", of(), of(name=fresh, scope="windows:read")),
    "/keys/{key_id}/revoke": ("key.revoke", _of_a_key, of()),
}
IN_TESTS_OF_THEIR_OWN: Final = {"/turns/{turn}/untag", "/upstreams/{upstream}/accept"}


@pytest.fixture(autouse=True)
async def _engines_take_sessions(house: House) -> AsyncIterator[None]:
    yield
    await house.parts.base.registry.undo_drain("two")


async def recorded(house: House, work: Callable[[], Awaitable[Any]]) -> list[tuple[str, str, str]]:
    before = await house.records()
    await work()
    records = sorted((await house.records() - before).elements())
    # Each session that a drain moves is an operation, too.
    is_drain = any(event == "engine_drain" for event, _, _ in records)
    return [each for each in records if not (is_drain and each[0] == "session_move")]


def events_of_the_page() -> set[str]:
    rows = re.findall(r"^\| (`[^|]+`) \|", AUDIT_PAGE.read_text(), re.MULTILINE)
    return set(re.findall(r"`([^`]+)`", " ".join(rows)))


async def test_the_page_names_each_event() -> None:
    events = {each[0] for table in (TOOLS, ROUTES, DONE) for each in table.values()} | {*ENTRANCE.values()}
    assert events | {"upstream.accept", "security.not_found"} <= events_of_the_page()


async def test_every_tool_that_changes_something_is_in_the_table(house: House) -> None:
    tools = {
        tool.name
        for tool in await house.agent.list_tools()
        if tool.annotations is None or not tool.annotations.read_only_hint
    }
    assert tools == TOOLS.keys() | UNRECORDED_TOOLS.keys()


@pytest.mark.parametrize("tool", TOOLS)
async def test_a_tool_that_changes_something_leaves_one_record(house: House, tool: str) -> None:
    event, make = TOOLS[tool]
    arguments = await make(house)
    assert await recorded(house, lambda: house.call(tool, **arguments)) == [(event, "success", "local")]


def routes_of(house: House) -> set[str]:
    """Method and path of whatever may change something, but for MCP's messages and the console's actions."""
    found = set()
    for route in house.app.routes:
        if not isinstance(route, Route):
            continue
        endpoint = route.endpoint
        methods = endpoint.methods.split(", ") if isinstance(endpoint, Endpoint) else route.methods or ()
        found |= {f"{method} {route.path.rstrip('/')}" for method in methods if method not in {"GET", "HEAD"}}
    return found - {f"POST /console{path}" for path in ACTIONS}


async def test_every_route_that_changes_something_is_in_a_table(house: House) -> None:
    assert routes_of(house) == ROUTES.keys() | UNRECORDED_ROUTES.keys() | ENTRANCE.keys()


@pytest.mark.parametrize("route", ROUTES)
async def test_a_route_that_changes_something_leaves_one_record(house: House, route: str) -> None:
    event, make, body = ROUTES[route]
    method, _, path = route.partition(" ")
    path = path.format_map(await make(house))
    assert await recorded(house, lambda: house.sent(method, path, body)) == [(event, "success", "local")]


async def test_every_action_is_in_a_table() -> None:
    assert ACTIONS.keys() == DONE.keys() | IN_TESTS_OF_THEIR_OWN


@pytest.mark.parametrize("action", DONE)
async def test_an_action_leaves_one_record(house: House, action: str) -> None:
    event, make, fill = DONE[action]
    path = action.format_map(await make(house))
    given = await fill(house)
    assert await recorded(house, lambda: house.acts(path, given)) == [(event, "success", "local")]


async def test_removing_a_tag_leaves_one_record(house: House) -> None:
    turn = await house.turn()
    await house.call("turn_tag", tag=house.name("tag"), turn=turn)
    assert await recorded(house, lambda: house.acts(f"/turns/{turn}/untag", {})) == [
        ("turn_tag", "success", "local")
    ]


async def test_accepting_a_tool_leaves_one_record(house: House) -> None:
    desk, upstreams = house.parts.agent_side.tool_desk, house.parts.agent_side.upstreams
    await desk.tools.note("files", [version_of(a_tool("read", "As it was."))], desk.clock.now())
    async with bad_server() as server:
        offering(server, a_tool("read", "As it is."))
        await upstreams.configure([server.spec(name="files", pin_tools=True)])
        for link in upstreams.roster.links.values():
            await link.settled()
        page = Document((await house.http.get("/console/upstreams/files/accept")).text)
        (digest,) = [
            each.attributes["value"] for each in page.all("input") if each.attributes["name"] == "tool"
        ]
        accept = recorded(house, lambda: house.acts("/upstreams/files/accept", {"tool": digest}))
        assert await accept == [("upstream.accept", "success", "local")]
        await upstreams.configure([])


async def test_signing_in_looking_elsewhere_and_signing_out_leave_one_record_each(house: House) -> None:
    async with httpx2.AsyncClient(base_url=house.url, trust_env=False, timeout=60) as browser:

        async def send(path: str, fields: Mapping[str, str]) -> None:
            answer = await browser.post(path, data=dict(fields), headers={"origin": house.url})
            assert answer.status_code == 303, answer.text
            for cookie in answer.headers.get_list("set-cookie"):
                name, _, value = cookie.partition(";")[0].partition("=")
                browser.cookies.set(name, value)

        async def token() -> str:
            page = Document((await browser.get("/console")).text)
            return next(
                each.attributes["value"]
                for each in page.all("input")
                if each.attributes["name"] == "form_token"
            )

        assert await recorded(house, lambda: send("/console/sign-in", {"key": "k"})) == [
            ("console_sign_in", "success", "local")
        ]
        fields = {"form_token": await token(), "tenant": "default"}
        assert await recorded(house, lambda: send("/console/tenant", fields)) == [
            ("console_tenant", "success", "local")
        ]
        assert await recorded(house, lambda: send("/console/sign-out", fields)) == [
            ("console_sign_out", "success", "local")
        ]


async def test_refused_reads_are_recorded_no_further_than_the_bound_and_the_rest_is_counted(
    house: House,
) -> None:
    headers = {"x-tenant": "guessing", "x-subject": "eve"}
    for number in range(50):
        answer = await house.http.get(f"/v1/responses/resp_{number:032x}", headers=headers)
        assert answer.status_code == 404
        answer = await house.http.delete(f"/v1/responses/resp_{number:032x}", headers=headers)
        assert answer.status_code == 404
    assert (await house.records("guessing")).total() == 20
    other = await house.http.get("/v1/responses/resp_1", headers={**headers, "x-subject": "bob"})
    assert other.status_code == 404
    (last,) = await house.parts.base.trail.newest("guessing", 1)
    assert (last.event.subject, last.event.event, last.event.outcome) == (
        "bob",
        "security.not_found",
        "CWM-2008",
    )
    assert last.event.details == {
        "where": "/v1/responses/{response}",
        "response": "resp_1",
        "left_out": 80,
    }


OF_ALL_TENANTS: Final = (
    "GET /metrics",
    "POST /reconcile",
    "GET /console/upstreams",
    "GET /console/upstreams/files/accept",
    "GET /console/doctor",
    "GET /console/engines/two/drain",
    "GET /console/engines/two/undrain",
    "get_metrics_data {}",
    'engine_upgrade {"model": "fake", "to": "two"}',
    'engine_upgrade {"model": "fake"}',
    'engine_drain {"engine": "two"}',
    'engine_drain {"engine": "two", "undo": true}',
)


@pytest.mark.parametrize("asked", OF_ALL_TENANTS)
async def test_admin_of_another_tenant_commands_nothing_that_all_share_and_each_try_is_one_record(
    house: House, asked: str
) -> None:
    """Through every face; who asks is admin, of ``ten-b``."""
    first, _, rest = asked.partition(" ")
    headers = {"x-tenant": "ten-b"}
    before = await house.records("ten-b")
    if rest.startswith("/"):
        answer = await house.http.request(first, rest, headers=headers, json={"dry_run": False})
        assert answer.status_code == 403
        text = answer.text
    else:
        transport = StreamableHttpTransport(f"{house.url}/mcp", headers=headers)
        async with Client(transport, mode=MODERN) as agent:
            text = str((await agent.call_tool_mcp(first, json.loads(rest))).content)
    assert "CWM-9002" in text
    ((record, times),) = (await house.records("ten-b") - before).items()
    assert (record[1:], times) == (("CWM-9002", "local"), 1)
    assert not await house.parts.base.registry.drained_engines()
