"""Shared context over MCP, as clients of either era have it."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from cwm.domain.audit import Severity
from cwm.domain.eviction import Eviction
from cwm.domain.shared_context import scope_of
from cwm.settings import Context, Settings
from tests.transport.mcp.gateway import LEGACY, MODERN, Agent, Gateway, fastmcp_agent, sdk_agent
from tests.transport.mcp.gateway import gateway as running_gateway
from tests.transport.mcp.wire import Wire

pytestmark = pytest.mark.slow


async def read(agent: Agent, uri: str) -> dict[str, Any]:
    contents = await agent.client.read_resource(uri)
    first = contents[0] if isinstance(contents, list) else contents.contents[0]
    return dict(json.loads(first.text))


@pytest.mark.parametrize("connect_as", [fastmcp_agent, sdk_agent])
async def test_what_one_agent_sets_another_of_its_tenant_gets(
    gateway: Gateway, era: str, connect_as: Any
) -> None:
    async with connect_as(gateway.url, era) as ann, connect_as(gateway.url, MODERN, ann.tenant) as bob:
        value = {"name": "cwm", "deps": ["ä", 1.5, None, True]}
        answer = (
            await ann.call("context_set", {"key": "files/package.json", "value": value, "scope": "tenant"})
        ).value
        assert answer["uri"] == "cwm://context/tenant/files/package.json"
        assert answer["entry"]["version"] == 1
        got = (await bob.call("context_get", {"key": "files/package.json", "scope": "tenant"})).value
        assert (got["found"], got["value"], got["entry"]["author"]) == (True, value, "agent")
        assert not (await bob.call("context_get", {"key": "files/package.json"})).value["found"]
        assert not (
            await bob.call("context_get", {"key": "files/package.json", "scope": "workspace:build"})
        ).value["found"]
        async with connect_as(gateway.url, era) as stranger:
            seen = await stranger.call("context_get", {"key": "files/package.json", "scope": "tenant"})
            assert not seen.value["found"]


async def test_a_hundred_writers_of_both_eras_lose_no_update(gateway: Gateway) -> None:
    async with (
        fastmcp_agent(gateway.url, LEGACY, "writers") as legacy,
        fastmcp_agent(gateway.url, MODERN, "writers") as modern,
    ):
        where = {"key": "counter", "scope": "tenant"}
        await legacy.call("context_set", {**where, "value": []})
        refused, at_once = 0, asyncio.Semaphore(12)

        async def add(number: int) -> None:
            nonlocal refused
            agent = (legacy, modern)[number % 2]
            while True:
                async with at_once:
                    found = (await agent.call("context_get", where)).value
                    given = {"value": [*found["value"], number], "if_version": found["entry"]["version"]}
                    answer = await agent.call("context_set", {**where, **given})
                if not answer.is_error:
                    return
                assert (answer.error["code"], answer.error["context"]["reason"]) == ("CWM-3007", "version")
                refused += 1

        async with asyncio.timeout(300):
            await asyncio.gather(*(add(number) for number in range(100)))
        counter = (await modern.call("context_get", where)).value
    assert sorted(counter["value"]) == list(range(100))
    assert counter["entry"]["version"] == 101
    assert refused > 0


async def test_a_private_scope_is_private(gateway: Gateway) -> None:
    async with (
        fastmcp_agent(gateway.url, LEGACY) as one,
        fastmcp_agent(gateway.url, LEGACY, one.tenant) as other,
        fastmcp_agent(gateway.url, MODERN, one.tenant) as modern,
    ):
        await one.call("context_set", {"key": "k", "value": 1})
        for agent in (other, modern):
            assert not (await agent.call("context_get", {"key": "k"})).value["found"]
            assert (await read(agent, "cwm://context/session/k"))["found"] is False
        assert (await read(one, "cwm://context/session/k"))["value"] == 1
        handle = (await modern.call("agent_session_create")).value["agent_session"]
        mine = {"key": "k", "agent_session": handle}
        await modern.call("context_set", {**mine, "value": 2})
        assert (await modern.call("context_get", mine)).value["value"] == 2
        assert not (await modern.call("context_get", {"key": "k"})).value["found"]
        async with fastmcp_agent(gateway.url, MODERN) as stranger:
            assert (await stranger.call("context_get", mine)).error["code"] == "CWM-2004"


async def test_every_tool_does_what_it_says(agent: Agent) -> None:
    scope = {"scope": "workspace:build"}

    async def call(tool: str, **arguments: Any) -> dict[str, Any]:
        return (await agent.call(f"context_{tool}", {**scope, **arguments})).value

    await call("set", key="a/1", value=None)
    await call("set", key="a/2", value=[1], ttl=3600, priority=9)
    await call("set", key="b", value="text", immutable=True)
    page = await call("list", prefix="a/", limit=1)
    assert [entry["key"] for entry in page["entries"]] == ["a/1"]
    assert (page["has_more"], page["next_after"]) == (True, "a/1")
    page = await call("list", prefix="a/", after=page["next_after"])
    assert [(entry["key"], entry["priority"]) for entry in page["entries"]] == [("a/2", 9)]
    assert "expires_at" in page["entries"][0]
    assert (await call("get", key="a/1"))["value"] is None
    taken = await call("snapshot", label="v1")
    assert (taken["snapshot"]["version"], taken["dropped"]) == (3, [])
    await call("set", key="a/1", value="new", if_version=1)
    assert (await call("delete", key="a/2"))["deleted"] is True
    assert (await call("delete", key="a/2"))["deleted"] is False
    assert (await call("get", key="a/1", snapshot="v1"))["value"] is None
    assert (await call("get", key="a/1", version=4))["value"] == "new"
    restored = await call("restore", snapshot="v1")
    assert (restored["version"], restored["keys_written"], restored["keys_deleted"]) == (6, 2, 0)
    stats = await call("stats")
    assert (stats["of_scope"]["keys"], stats["of_scope"]["version"]) == (3, 6)
    # What all tenants share is the operator's.
    assert "memory" not in stats
    assert stats["shared_store"]["used_bytes"] > 0


async def test_a_key_lives_for_an_hour_unless_its_ttl_says_otherwise_and_tells_its_hash(agent: Agent) -> None:
    async def lifetime(**ttl: float) -> float | None:
        entry = (await agent.call("context_set", {"key": "k", "value": {"b": 1, "a": "ä"}, **ttl})).value[
            "entry"
        ]
        assert entry["hash"] == sha256('{"a":"ä","b":1}'.encode()).hexdigest()
        if "expires_at" not in entry:
            return None
        ends, written = (datetime.fromisoformat(entry[name]) for name in ("expires_at", "written_at"))
        return (ends - written).total_seconds()

    assert await lifetime() == 3600
    assert await lifetime(ttl=5) == 5
    assert await lifetime(ttl=0) is None


async def test_refusals_come_with_their_codes_and_what_to_do_next(agent: Agent) -> None:
    await agent.call("context_set", {"key": "k", "value": 1})
    lost = (await agent.call("context_set", {"key": "k", "value": 2, "if_version": 0})).error
    assert (lost["code"], lost["context"]) == (
        "CWM-3007",
        {"key": "k", "current_version": 1, "reason": "version"},
    )
    await agent.call("context_set", {"key": "fixed", "value": 1, "immutable": True})
    assert (await agent.call("context_delete", {"key": "fixed"})).error["context"]["reason"] == "immutable"
    refused: dict[str, list[tuple[str, dict[str, Any]]]] = {
        "CWM-1003": [
            ("context_set", {"key": "", "value": 1}),
            ("context_set", {"key": "k\n", "value": 1}),
            ("context_set", {"key": "k"}),
            ("context_set", {"key": "k", "value": 1, "ttl": -1}),
            ("context_get", {"key": "k", "scope": "everybody"}),
            ("context_get", {"key": "k", "version": 99}),
            ("context_get", {"key": "k", "version": 1, "snapshot": "x"}),
            ("context_set", {"key": "k", "value": "x" * 2**20}),
        ],
        "CWM-2006": [
            ("context_restore", {"snapshot": "never"}),
            ("context_get", {"key": "k", "snapshot": "x"}),
        ],
    }
    for code, calls in refused.items():
        for tool, arguments in calls:
            assert (await agent.call(tool, arguments)).error["code"] == code, (tool, arguments)


async def test_what_leaves_memory_first_can_change_while_it_serves(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway, fastmcp_agent(gateway.url, MODERN, "acme") as agent:
        await agent.call("context_set", {"key": "k", "value": "x" * 10_000})
        context = Context(context_memory_mb=1, context_eviction=Eviction.SIZE)
        await gateway.parts.reconfigure(Settings(context=context))
        memory = (await agent.call("context_stats")).value["memory"]
        assert (memory["eviction"], memory["limit_bytes"]) == ("size", int(0.9 * 2**20))
        assert (memory["values"], memory["hot_values"]) == (1, 1)
        assert gateway.parts.services.shared_context.views.most_bytes == 2**19
        assert (await agent.call("context_get", {"key": "k"})).value["value"] == "x" * 10_000


async def test_a_key_and_a_prefix_are_resources(agent: Agent) -> None:
    for key in ("files/a b", "files/ä", "star*", "other"):
        await agent.call("context_set", {"key": key, "value": key, "scope": "tenant"})
    assert (await read(agent, "cwm://context/tenant/files/a%20b"))["value"] == "files/a b"
    assert (await read(agent, "cwm://context/tenant/star%2A"))["value"] == "star*"
    listed = await read(agent, "cwm://context/tenant/files/*")
    assert [entry["key"] for entry in listed["entries"]] == ["files/a b", "files/ä"]
    assert len((await read(agent, "cwm://context/tenant/*"))["entries"]) == 4


async def test_a_value_that_was_damaged_is_never_served(gateway: Gateway, agent: Agent) -> None:
    await agent.call("context_set", {"key": "k", "value": "good " * 500, "scope": "tenant"})
    parts = gateway.parts
    found = await parts.services.shared_context.get(scope_of(agent.tenant, "", "tenant"), "k")
    assert found.entry is not None
    digest = str(found.entry.digest)
    await parts.agent_side.contents.store.put(agent.tenant, digest, b"\x00bad", "h", None, None)
    parts.agent_side.contents.cache.drop((agent.tenant, digest))
    error = (await agent.call("context_get", {"key": "k", "scope": "tenant"})).error
    assert error["code"] == "CWM-4004"
    (event,) = await parts.base.audit.events(agent.tenant, 5)
    assert (event.event, event.severity) == ("content.drop", Severity.ERROR)


async def test_a_session_hears_of_keys_and_prefixes_it_subscribed_to(gateway: Gateway, wire: Wire) -> None:
    session = await wire.session()
    for uri in ("cwm://context/tenant/files/*", "cwm://context/tenant/k", "cwm://context/session/*"):
        assert (await wire.ask(session, "resources/subscribe", uri=uri)).status_code == 200
    async with (
        wire.stream(session) as stream,
        fastmcp_agent(gateway.url, MODERN, "acme") as other,
        fastmcp_agent(gateway.url, LEGACY, "elsewhere") as stranger,
    ):
        tenant = {"scope": "tenant", "value": 1}
        await stranger.call("context_set", {"key": "k", **tenant})
        await other.call("context_set", {"key": "private", "value": 1})
        await other.call("context_set", {"key": "other", **tenant})
        await other.call("context_set", {"key": "files/a", **tenant})
        assert (await stream.message())["params"] == {"uri": "cwm://context/tenant/files/*"}
        await other.call("context_set", {"key": "k", **tenant})
        assert (await stream.message())["params"] == {"uri": "cwm://context/tenant/k"}
        await other.call("context_delete", {"key": "files/a", "scope": "tenant"})
        assert (await stream.message())["params"] == {"uri": "cwm://context/tenant/files/*"}


async def test_who_watches_a_key_hears_of_a_restore_of_very_many(gateway: Gateway, wire: Wire) -> None:
    session, scope = await wire.session(), {"scope": "tenant"}
    watched = ["cwm://context/tenant/files/077", "cwm://context/tenant/files/1*"]
    async with fastmcp_agent(gateway.url, MODERN, "acme") as agent:
        await agent.call("context_snapshot", {"label": "empty", **scope})
        for number in range(102):
            await agent.call("context_set", {"key": f"files/{number:03}", "value": number, **scope})
        for uri in (*watched, "cwm://context/tenant/file"):
            assert (await wire.ask(session, "resources/subscribe", uri=uri)).status_code == 200
        async with (
            wire.stream(session) as stream,
            wire.listen({"resourceSubscriptions": watched}) as listener,
        ):
            restored = (await agent.call("context_restore", {"snapshot": "empty", **scope})).value
            assert restored["keys_deleted"] == 102
            for each in (stream, listener):
                told = {(await each.message())["params"]["uri"] for _ in watched}
                assert told == set(watched)


async def test_a_listener_hears_of_keys_and_prefixes_it_asked_for(gateway: Gateway, wire: Wire) -> None:
    wanted = {"resourceSubscriptions": ["cwm://context/workspace:w/*", "cwm://context/session/k"]}
    async with (
        wire.listen(wanted, x_tenant="asks") as stream,
        fastmcp_agent(gateway.url, LEGACY, "asks") as legacy,
        fastmcp_agent(gateway.url, MODERN, "asks") as modern,
    ):
        await legacy.call("context_set", {"key": "k", "value": 1})
        await legacy.call("context_set", {"key": "k", "value": 1, "scope": "workspace:other"})
        await legacy.call("context_set", {"key": "k", "value": 1, "scope": "workspace:w"})
        assert (await stream.message())["params"]["uri"] == "cwm://context/workspace:w/*"
        await modern.call("context_set", {"key": "k", "value": 1})
        assert (await stream.message())["params"]["uri"] == "cwm://context/session/k"
