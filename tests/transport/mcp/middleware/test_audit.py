"""What the MCP face leaves in the audit log: where from, attacks, and who asked for what is another's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from mcp import MCPError

from cwm.adapters.sql import schema
from cwm.adapters.sql.audit.trail import SqlAuditTrail
from cwm.domain.access import EVERY
from cwm.domain.audit import AuditEvent
from cwm.domain.origin import Face
from cwm.domain.principal import Principal
from cwm.domain.results import Part, PartKind, StoredResult
from cwm.domain.tool_policy import ToolPolicy
from cwm.services.audit.verify import VerifyAudit
from cwm.settings import Database, Engine, Isolation, Settings
from cwm.transport.http.origin import OriginLayer
from cwm.wiring.parts import Parts, build_parts
from tests.contracts.nouns import freeze
from tests.transport.mcp.gateway import LEGACY, MODERN, Agent, assembled, faced, nobody_listens, serving

pytestmark = pytest.mark.slow

BODY = "a line of a result\n" * 4_000


class TwoSubjects:
    """Callers who say who they are; only right in a test."""

    async def authenticate(self, headers: Mapping[str, str]) -> Principal:
        return Principal("acme", headers.get("x-subject", "ann"), EVERY)


@dataclass(frozen=True, slots=True)
class Audited:
    url: str
    parts: Parts

    async def events(self, event: str | None = None) -> list[AuditEvent]:
        """Oldest first."""
        found = (await self.parts.base.audit.events("acme", 100))[::-1]
        return [each for each in found if event in {None, each.event}]

    async def kept(self, *, shared: bool) -> StoredResult:
        """A result of ann's."""
        return await self.parts.services.results.keep(
            Principal("acme", "ann"),
            "docs_read",
            "a1",
            [Part(PartKind.TEXT, "text/plain", BODY.encode())],
            ToolPolicy(shared=shared),
        )

    @asynccontextmanager
    async def agent(self, subject: str, era: str, **headers: str) -> AsyncIterator[Agent]:
        transport = StreamableHttpTransport(
            f"{self.url}/mcp", headers={"x-subject": subject, "user-agent": f"{subject}/1", **headers}
        )
        async with Client(transport, mode=era) as client:
            yield Agent(client, "acme")


@pytest.fixture
async def audited(tmp_path: Path) -> AsyncIterator[Audited]:
    with nobody_listens() as nobody:
        settings = Settings(
            database=Database(db_path=tmp_path / "cwm.db"),
            engine=Engine(vllm_url=nobody, lmcache_url=nobody, coordinator_url=nobody),
            isolation=Isolation(secret="a test's secret", tenant="acme"),
        )
        await schema.upgrade(settings.database.url())
        parts = build_parts(settings)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(parts.close())
            face = faced(parts, identity=TwoSubjects())
            app = OriginLayer(assembled(parts, face))
            url = await stack.enter_async_context(serving(app, face.end_streams))
            yield Audited(url, parts)
            trail = SqlAuditTrail(parts.base.database, parts.base.audit.keys)
            assert (await VerifyAudit(trail, parts.base.audit.keys)("acme")).whole


@pytest.fixture(params=[LEGACY, MODERN])
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_an_operation_says_who_from_where_and_how_it_ended(audited: Audited, era: str) -> None:
    async with audited.agent("ann", era, **{"x-forwarded-for": "192.0.2.1"}) as agent:
        assert (await agent.call("window_delete", {"window_name": "w1"})).error["code"] == "CWM-2002"
    (event,) = await audited.events()
    assert (event.subject, event.event, event.outcome) == ("ann", "window_delete", "CWM-2002")
    origin = event.origin
    assert (origin.face, origin.address, origin.user_agent) == (Face.MCP, "127.0.0.1", "ann/1")


async def test_a_name_that_is_an_attack_is_recorded_once_without_its_value(
    audited: Audited, era: str
) -> None:
    async with audited.agent("ann", era) as agent:
        for arguments in (
            {"session_id": "s1", "window_name": "../../etc/passwd"},
            {"session_id": "'; DROP TABLE windows; --", "window_name": "$(reboot)"},
            {"session_id": "s1", "window_name": "w1", "tags": ["fine", "`reboot`"]},
            {"session_id": "s1", "window_name": "a mistake"},
            {"session_id": "s1", "window_name": "w1", "description": "$(reboot) ../ ;" * 500},
        ):
            assert (await agent.call("window_freeze", arguments)).is_error
    events = await audited.events()
    assert [(event.event, event.outcome, event.details) for event in events] == [
        (
            "security.injection",
            code,
            {"where": "window_freeze", "field": field, "class": kind},
        )
        for code, field, kind in (
            ("CWM-1002", "window_name", "path_traversal"),
            ("CWM-1001", "session_id", "sql"),
            ("CWM-1003", "tags", "shell"),
        )
    ]
    assert {event.subject for event in events} == {"ann"}


async def test_asking_for_a_result_of_another_is_recorded_and_told_like_an_unknown_one(
    audited: Audited, era: str
) -> None:
    result = await audited.kept(shared=False)
    async with audited.agent("bob", era) as agent:
        foreign = (await agent.call("result_read", {"handle": result.handle})).error
        unknown = (await agent.call("result_read", {"handle": "r_" + "0" * 22})).error
    assert foreign == unknown
    event, of_unknown = sorted(await audited.events(), key=lambda each: each.event)
    assert (of_unknown.subject, of_unknown.event, of_unknown.outcome) == (
        "bob",
        "security.not_found",
        "CWM-2005",
    )
    assert of_unknown.details == {"where": "result_read"}
    assert (event.subject, event.event, event.outcome) == ("bob", "security.isolation_violation", "denied")
    told = {"what": "result", "handle": result.handle, "owner": "ann", "tool": "docs_read"}
    assert event.details == told
    assert event.origin.address == "127.0.0.1"


async def test_reading_what_another_has_shared_is_recorded_read_by_read(audited: Audited, era: str) -> None:
    result = await audited.kept(shared=True)
    async with audited.agent("ann", era) as agent:
        assert not (await agent.call("result_read", {"handle": result.handle})).is_error
    async with audited.agent("bob", era) as agent:
        page = (await agent.call("result_read", {"handle": result.handle, "max_tokens": 1_000})).value
        await agent.call("result_read", {"cursor": page["next_cursor"]})
        query = {"handle": result.handle, "head": 2_000, "max_tokens": 500}
        answer = (await agent.call("result_query", query)).value
        await agent.call("result_query", {**query, "cursor": answer["next_cursor"]})
    events = await audited.events()
    assert [(event.subject, event.event) for event in events] == [("bob", "security.shared_access")] * 4
    assert all(event.details["handle"] == result.handle for event in events)


async def test_a_cursor_in_the_wrong_hands_is_recorded(audited: Audited, era: str) -> None:
    result = await audited.kept(shared=True)
    async with audited.agent("ann", era) as agent:
        page = (await agent.call("result_read", {"handle": result.handle, "max_tokens": 1_000})).value
    async with audited.agent("bob", era) as agent:
        refused = await agent.call("result_read", {"cursor": page["next_cursor"]})
        assert refused.error["context"]["reason"] == "foreign"
        assert (await agent.call("result_read", {"cursor": "A" * 120})).is_error
    (event,) = await audited.events()
    assert (event.subject, event.details) == ("bob", {"what": "cursor"})


async def test_a_cursor_of_a_list_in_the_wrong_hands_is_refused_and_recorded(
    audited: Audited, era: str
) -> None:
    for name in ("w1", "w2", "w3"):
        await freeze(audited.parts.base.registry, name, tenant="acme")
    async with audited.agent("ann", era) as agent:
        page = (await agent.call("window_list", {"limit": 1})).value
        following = {"limit": 1, "cursor": page["next_cursor"]}
        assert len((await agent.call("window_list", following)).value["windows"]) == 1
        other_query = await agent.call("window_list", {**following, "search": "w"})
        assert other_query.error["context"]["reason"] == "foreign"
    async with audited.agent("bob", era) as agent:
        refused = await agent.call("window_list", following)
        assert (refused.error["code"], refused.error["context"]["reason"]) == ("CWM-1003", "foreign")
        forged = await agent.call("window_list", {"cursor": page["next_cursor"][:-4] + "AAA="})
        assert forged.error["context"]["reason"] == "malformed"
    (event,) = await audited.events("security.isolation_violation")
    assert (event.subject, event.details) == ("bob", {"what": "cursor"})


async def test_an_agent_session_of_another_is_recorded(audited: Audited) -> None:
    async with audited.agent("ann", MODERN) as ann, audited.agent("bob", MODERN) as bob:
        created = (await ann.call("agent_session_create")).value
        (handle,) = [value for name, value in created.items() if name == "agent_session"]
        for asked in (handle, "0" * 32):
            refused = await bob.call("agent_session_end", {"agent_session": asked})
            assert refused.error["code"] == "CWM-2004"
    (event,) = await audited.events("security.isolation_violation")
    assert (event.subject, event.details) == ("bob", {"what": "agent_session"})


async def test_an_mcp_session_of_another_is_recorded_and_not_found(audited: Audited) -> None:
    initialize = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "c", "version": "1"},
        },
    }
    accept = {"accept": "application/json, text/event-stream"}
    async with httpx2.AsyncClient(base_url=audited.url, headers=accept, trust_env=False) as http:
        opened = await http.post("/mcp", json=initialize)
        for asked in (opened.headers["mcp-session-id"], "0" * 32):
            headers = {"mcp-session-id": asked, "x-subject": "bob"}
            ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
            assert (await http.post("/mcp", json=ping, headers=headers)).status_code == 404
    (event,) = await audited.events()
    assert (event.subject, event.details) == ("bob", {"what": "mcp_session"})


async def test_a_resource_of_another_is_recorded(audited: Audited, era: str) -> None:
    result = await audited.kept(shared=False)
    async with audited.agent("bob", era) as agent:
        with pytest.raises(MCPError):
            await agent.client.read_resource(f"cwm://results/{result.handle}")
    (event,) = await audited.events()
    assert (event.event, event.details["what"]) == ("security.isolation_violation", "result")
