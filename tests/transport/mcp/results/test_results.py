"""What tools answer over a registry with windows and sessions in it, while the engine is down."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from cwm.domain.session import SessionState
from cwm.domain.window import Durability
from tests.adapters.vllm.fake_vllm import fake_vllm
from tests.contracts.nouns import LATER, NOW, a_session, a_window, clone, freeze, recorded
from tests.transport.llm.gateway import settings_for
from tests.transport.mcp.gateway import Agent, Gateway, ToolReply, fastmcp_agent, sdk_agent
from tests.transport.mcp.gateway import gateway as running_gateway

pytestmark = pytest.mark.slow


async def test_lists_filter_sort_search_and_page(gateway: Gateway, agent: Agent) -> None:
    registry, tenant = gateway.parts.base.registry, agent.tenant
    for number, tags in enumerate([("a",), ("a", "b"), ("b",)]):
        await freeze(
            registry,
            f"w{number}",
            tenant=tenant,
            ids=tuple(range(100 + number)),
            tags=tags,
            description=f"Work on part {number}",
            created_at=NOW + timedelta(hours=number),
        )

    async def names(**query: Any) -> list[str]:
        return [w["name"] for w in (await agent.call("window_list", query)).value["windows"]]

    assert await names() == ["w2", "w1", "w0"]
    assert await names(sort_by="token_count", sort_order="asc") == ["w0", "w1", "w2"]
    assert await names(tags=["a", "b"]) == ["w1"]
    assert await names(search="PART 2") == ["w2"]
    assert await names(model="other") == []
    assert await names(created_after="2026-03-01T13:00:00Z", created_before="2026-03-01T15:00:00+01:00") == [
        "w1"
    ]
    page = (await agent.call("window_list", {"limit": 2})).value
    assert (len(page["windows"]), page["total"], page["has_more"]) == (2, 3, True)
    rest = (await agent.call("window_list", {"limit": 2, "offset": 2})).value
    assert (len(rest["windows"]), rest["total"], rest["has_more"]) == (1, 3, False)


async def test_a_list_goes_on_where_its_cursor_says(gateway: Gateway, agent: Agent) -> None:
    source = await freeze(gateway.parts.base.registry, "w0", tenant=agent.tenant, description="of a list")
    for number in range(1, 5):
        await clone(gateway.parts.base.registry, source, f"w{number}")
    asked = {"sort_by": "name", "sort_order": "asc", "search": "OF A", "limit": 2}
    seen, cursor = [], None
    while True:
        page = (await agent.call("window_list", {**asked, "cursor": cursor})).value
        seen.append([window["name"] for window in page["windows"]])
        assert (page["total"], page["has_more"]) == (5, "next_cursor" in page)
        if (cursor := page.get("next_cursor")) is None:
            break
    assert seen == [["w0", "w1"], ["w2", "w3"], ["w4"]]


async def test_a_cursor_of_another_list_or_beside_an_offset_is_refused(
    gateway: Gateway, agent: Agent
) -> None:
    source = await freeze(gateway.parts.base.registry, "w0", tenant=agent.tenant)
    await clone(gateway.parts.base.registry, source, "w1")
    cursor = (await agent.call("window_list", {"limit": 1})).value["next_cursor"]
    for wrong in ({"sort_by": "size"}, {"offset": 1}, {"tags": ["t"]}):
        error = (await agent.call("window_list", {**wrong, "cursor": cursor})).error
        assert (error["code"], error["context"]["field"]) == ("CWM-1003", "cursor")
    assert (await agent.call("window_list", {"cursor": "made up"})).error["code"] == "CWM-1003"


async def test_a_window_in_a_list_has_every_field_of_the_contract(gateway: Gateway, agent: Agent) -> None:
    source = await freeze(gateway.parts.base.registry, "one", "aa", "bb", tenant=agent.tenant)
    await clone(gateway.parts.base.registry, source, "two", tags=("t",), description="d", created_at=LATER)
    listed = (await agent.call("window_list", {"sort_by": "name", "sort_order": "asc"})).value["windows"]
    assert listed[1] == {
        "name": "two",
        "description": "d",
        "tags": ["t"],
        "model": "tiny",
        "token_count": 70,
        "size_bytes": 200,
        "created_at": "2026-03-01T12:35:15.123456Z",
        "parent_window": "one",
        "updated_at": listed[1]["updated_at"],
        "session_id": "of-one",
        "durability": "durable",
        "storage_tier": "redis",
        "retention": "guaranteed",
        "owner": "ann",
        "visibility": "tenant",
    }
    assert listed[0]["parent_window"] is None


async def test_a_windows_status_tells_its_record_while_the_cache_is_silent(
    gateway: Gateway, agent: Agent
) -> None:
    await freeze(
        gateway.parts.base.registry, "w", "aa", "bb", tenant=agent.tenant, description="d", tags=("t",)
    )
    status = (await agent.call("window_status", {"window_name": "w"})).value
    assert status == {
        "type": "window",
        "id": "w",
        "state": "frozen",
        "model": "tiny",
        "token_count": 70,
        "kv_cache": {"block_count": 2, "total_size_bytes": 200, "storage_tier": "redis"},
        "timestamps": {
            "created_at": "2026-03-01T12:30:15.123456Z",
            "updated_at": status["timestamps"]["updated_at"],
            "frozen_at": "2026-03-01T12:30:15.123456Z",
        },
        "description": "d",
        "tags": ["t"],
        "session_id": "of-w",
        "durability": "durable",
        "retention": "guaranteed",
        "proven_at": "2026-03-01T12:35:15.123456Z",
        "parent_window": None,
        "owner": "ann",
        "visibility": "tenant",
    }


async def test_blocks_come_only_when_asked_for(gateway: Gateway, agent: Agent) -> None:
    await freeze(gateway.parts.base.registry, "w", "aa", "bb", tenant=agent.tenant)
    status = (await agent.call("window_status", {"window_name": "w", "include_blocks": True})).value
    assert status["blocks"] == [
        {"hash": "aa", "size_bytes": 100, "tiers": []},
        {"hash": "bb", "size_bytes": 100, "tiers": []},
    ]


async def test_a_failed_window_says_why(gateway: Gateway, agent: Agent) -> None:
    registry = gateway.parts.base.registry
    await registry.add_session(a_session("s", agent.tenant), range(1000, 1070))
    window = a_window("w", agent.tenant, session_id="s")
    await registry.begin_freeze(window, range(1000, 1070), 0)
    assert (await agent.call("window_status", {"window_name": "w"})).value["durability"] == "pending"
    await registry.fail_freeze(window, "LMCache is full.", LATER)
    status = (await agent.call("window_status", {"window_name": "w"})).value
    assert (status["durability"], status["failure"]) == ("failed", "LMCache is full.")


async def test_a_sessions_status_tells_its_state_and_where_it_came_from(
    gateway: Gateway, agent: Agent
) -> None:
    registry = gateway.parts.base.registry
    await freeze(registry, "w", tenant=agent.tenant)
    await registry.add_session(
        a_session("s", agent.tenant, state=SessionState.THAWED, thawed_from="w", branch_token=70), range(70)
    )
    status = (await agent.call("window_status", {"session_id": "s", "include_blocks": True})).value
    assert status == {
        "type": "session",
        "id": "s",
        "state": "thawed",
        "model": "tiny",
        "token_count": 70,
        "kv_cache": {"block_count": 0, "total_size_bytes": 0},
        "timestamps": {
            "created_at": "2026-03-01T12:30:15.123456Z",
            "updated_at": "2026-03-01T12:30:15.123456Z",
            "frozen_at": None,
        },
        "blocks": [],
        "parent_window": "w",
        "branch_token": 70,
        "owner": "ann",
        "visibility": "tenant",
    }
    frozen = (await agent.call("window_status", {"session_id": "of-w"})).value
    assert frozen["state"] == "frozen"
    assert frozen["timestamps"]["frozen_at"].endswith("Z")


async def test_sessions_are_listed_by_state(gateway: Gateway, agent: Agent) -> None:
    registry = gateway.parts.base.registry
    await freeze(registry, "w", tenant=agent.tenant)
    for number, state in enumerate([SessionState.ACTIVE, SessionState.ACTIVE, SessionState.EXPIRED]):
        created = NOW + timedelta(minutes=number + 1)
        await registry.add_session(a_session(f"s{number}", agent.tenant, state=state, created_at=created), ())
    everything = (await agent.call("session_list")).value
    assert [s["id"] for s in everything["sessions"]] == ["s2", "s1", "s0", "of-w"]
    active = (await agent.call("session_list", {"state_filter": "active"})).value
    assert (active["success"], active["count"]) == (True, 2)
    assert (await agent.call("session_list", {"limit": 1})).value["count"] == 1


@pytest.mark.parametrize("noun", ["windows", "sessions"])
async def test_a_resource_that_lists_has_pages_that_show_each_once(
    gateway: Gateway, agent: Agent, noun: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cwm.transport.mcp.contract.resources.MAX_PAGE", 2)
    registry = gateway.parts.base.registry
    source = await freeze(registry, "w0", tenant=agent.tenant)
    for number in (1, 2):
        await clone(registry, source, f"w{number}", created_at=NOW + timedelta(hours=number))
    for number in range(3):
        created = NOW + timedelta(hours=number)
        await registry.add_session(a_session(f"s{number}", agent.tenant, created_at=created), ())
    seen, uri = list[str](), f"cwm://{noun}"
    while uri and len(seen) < 4:
        (content,) = await agent.client.read_resource(uri)
        page = json.loads(content.text)
        seen += [each.get("id") or each["name"] for each in page[noun]]
        uri = f"cwm://{noun}?cursor={page['next_cursor']}" if page["has_more"] else ""
    assert seen == [f"{noun[0]}{number}" for number in (2, 1, 0)]


async def test_sessions_are_paged_by_a_cursor_that_is_good_for_its_list_only(
    gateway: Gateway, agent: Agent
) -> None:
    for number in range(3):
        created = NOW + timedelta(minutes=number)
        await gateway.parts.base.registry.add_session(
            a_session(f"s{number}", agent.tenant, created_at=created), ()
        )
    first = (await agent.call("session_list", {"limit": 2})).value
    rest = (await agent.call("session_list", {"limit": 2, "cursor": first["next_cursor"]})).value
    assert [page["has_more"] for page in (first, rest)] == [True, False]
    assert [s["id"] for page in (first, rest) for s in page["sessions"]] == ["s2", "s1", "s0"]
    wrong = {"state_filter": "active", "cursor": first["next_cursor"]}
    assert (await agent.call("session_list", wrong)).error["context"]["field"] == "cursor"


async def test_a_window_without_blocks_names_no_tier_and_says_why(gateway: Gateway, agent: Agent) -> None:
    registry = gateway.parts.base.registry
    await freeze(registry, "small", tenant=agent.tenant)
    await registry.add_session(a_session("s", agent.tenant), range(1000, 1070))
    await registry.begin_freeze(a_window("pending", agent.tenant, session_id="s"), range(1000, 1070), 0)
    window = await freeze(registry, "again", "aa", tenant=agent.tenant)
    await registry.store_again(window, "acme#1", "salt-2", window.identity, LATER, pinned=True)
    for name in ("small", "pending", "again"):
        status = (await agent.call("window_status", {"window_name": name})).value
        assert "storage_tier" not in status["kv_cache"]
        assert ("shorter than one block" in status.get("warning", "")) is (name == "small")
    listed = (await agent.call("window_list")).value["windows"]
    assert all("storage_tier" not in window for window in listed)


async def test_a_freeze_without_blocks_names_no_tier_and_says_why(tmp_path: Path, era: str) -> None:
    async with (
        fake_vllm() as vllm,
        running_gateway(tmp_path, engine=settings_for(vllm.url)) as running,
        fastmcp_agent(running.url, era, "acme") as agent,
    ):
        assert not (await agent.call("session_create", {"session_id": "s"})).is_error
        await recorded(running.parts.base.registry, "acme", "s", (1, 2, 3), LATER)
        frozen = (await agent.call("window_freeze", {"session_id": "s", "window_name": "w"})).value
    assert "storage_tier" not in frozen
    assert "no LMCache" in frozen["warning"]


async def test_the_metadata_of_a_session_can_be_read_back_without_what_is_cwms_own(
    gateway: Gateway, agent: Agent
) -> None:
    metadata = {"project": "auth", "ticket": 42}
    session = a_session("s", agent.tenant, metadata={**metadata, "cwm.template": {"has_system": True}})
    await gateway.parts.base.registry.add_session(session, ())
    assert (await agent.call("window_status", {"session_id": "s"})).value["metadata"] == metadata


async def test_a_clone_shares_what_its_source_has_and_inherits_its_tags(
    gateway: Gateway, agent: Agent
) -> None:
    await freeze(gateway.parts.base.registry, "w", tenant=agent.tenant, tags=("t",))
    arguments = {"source_window": "w", "target_window": "c", "description": "branch"}
    answer = (await agent.call("window_clone", arguments)).value
    assert answer == {
        "success": True,
        "source_window": "w",
        "target_window": "c",
        "shared_blocks": 0,
        "token_count": 70,
        "visibility": "tenant",
    }
    listed = (await agent.call("window_list", {"search": "branch"})).value["windows"]
    assert [(w["name"], w["tags"], w["parent_window"]) for w in listed] == [("c", ["t"], "w")]
    again = (await agent.call("window_clone", arguments)).error
    assert (again["code"], again["retryable"]) == ("CWM-3003", False)


async def test_a_window_in_use_is_deleted_only_with_force_and_the_refusal_names_who_uses_it(
    gateway: Gateway, agent: Agent
) -> None:
    source = await freeze(gateway.parts.base.registry, "w", tenant=agent.tenant)
    await clone(gateway.parts.base.registry, source, "c")
    refused = (await agent.call("window_delete", {"window_name": "w"})).error
    assert (refused["code"], refused["context"]["windows"]) == ("CWM-3004", ["c"])
    forced = (await agent.call("window_delete", {"window_name": "w", "force": True})).value
    assert forced == {
        "success": True,
        "window_name": "w",
        "blocks_deleted": 0,
        "space_freed_bytes": 0,
        "session_id": "of-w",
        "session_state": "frozen",
    }
    assert (await agent.call("window_status", {"window_name": "w"})).error["code"] == "CWM-2002"
    assert (await agent.call("window_status", {"window_name": "c"})).value["token_count"] == 70


async def test_while_the_engine_is_down_its_verbs_are_retryable_and_leave_the_window_alone(
    gateway: Gateway, agent: Agent
) -> None:
    registry = gateway.parts.base.registry
    await freeze(registry, "w", "aa", tenant=agent.tenant)
    before = await registry.window(agent.tenant, "w")
    for tool, arguments in (
        ("session_create", {}),
        ("window_thaw", {"window_name": "w"}),
        ("window_delete", {"window_name": "w"}),
    ):
        error = (await agent.call(tool, arguments)).error
        assert (tool, error["code"], error["retryable"]) == (tool, "CWM-5001", True)
    after = await registry.window(agent.tenant, "w")
    assert before is not None
    assert after is not None
    assert replace(after, pinned=before.pinned, updated_at=before.updated_at) == before
    assert after.durability is Durability.DURABLE


async def test_another_tenants_things_answer_like_things_that_do_not_exist(
    gateway: Gateway, agent: Agent, era: str
) -> None:
    await freeze(gateway.parts.base.registry, "w", tenant=agent.tenant)
    async with fastmcp_agent(gateway.url, era) as stranger:
        for arguments, code in (({"window_name": "w"}, "CWM-2002"), ({"session_id": "of-w"}, "CWM-2001")):
            theirs = (await stranger.call("window_status", arguments)).error
            nobodys = (await stranger.call("window_status", {next(iter(arguments)): "nothing"})).error
            assert theirs["code"] == nobodys["code"] == code
            assert theirs["message"].replace("of-w", "x").replace("'w'", "'x'") == nobodys["message"].replace(
                "nothing", "x"
            )
        assert (await stranger.call("window_list")).value["total"] == 0


async def test_statistics_of_a_silent_engine_are_zeros_and_count_the_registry(
    gateway: Gateway, agent: Agent, era: str
) -> None:
    await freeze(gateway.parts.base.registry, "w", "aa", "bb", tenant=agent.tenant)
    statistics = (await agent.call("cache_stats")).value
    assert statistics == {
        "success": True,
        "kv_store": {"total_blocks": 2, "total_bytes": 200, "hit_rate": 0.0},
        "vllm": {"connected": False, "hit_rate": 0.0, "cached_tokens": 0},
        "results": statistics["results"],
    }
    async with fastmcp_agent(gateway.url, era, "acme") as operator:
        of_all = (await operator.call("cache_stats")).value
    assert of_all["kv_store"]["tiers"] == []
    assert of_all["engine"] == {"kv_hit_rate": 0.0, "prefix_hit_rate": 0.0, "cached_tokens": 0}
    told = statistics["results"]
    assert told["saved_tokens"] == told["had_tokens"] - told["delivered_tokens"] - told["read_later_tokens"]


async def test_health_tells_each_component(agent: Agent) -> None:
    health = (await agent.call("health_check")).value
    assert (health["success"], health["status"], health["version"]) == (True, "unhealthy", "0.1.0")
    assert {c["name"]: c["status"] for c in health["components"]} == {
        "kv_store": "unhealthy",
        "vllm": "unhealthy",
        "registry": "healthy",
        "coordinator": "unhealthy",
    }
    registry = (await agent.call("health_check", {"component": "registry"})).value
    assert (registry["status"], [c["name"] for c in registry["components"]]) == ("healthy", ["registry"])


async def test_metrics_are_the_same_registry_in_both_formats(gateway: Gateway, era: str) -> None:
    async with fastmcp_agent(gateway.url, era, "acme") as operator:
        await operator.call("session_create")
        prometheus = await operator.call("get_metrics_data")
        as_json = await operator.call("get_metrics_data", {"format": "json"})
        (tool,) = [each for each in await operator.client.list_tools() if each.name == "get_metrics_data"]
    assert prometheus.text == prometheus.value["text"]
    assert prometheus.value["format"] == "prometheus"
    assert json.loads(as_json.text) == as_json.value
    Draft202012Validator(tool.output_schema).validate(as_json.value)
    listed = as_json.value["metrics"]
    failed = next(
        m
        for m in listed
        if m["name"] == "cwm_operation_total"
        and m["labels"] == {"operation": "session_create", "status": "error"}
    )
    assert failed["type"] == "counter"
    line = f'cwm_operation_total{{operation="session_create",status="error"}} {failed["value"]}'
    assert line in prometheus.text
    assert line in gateway.parts.base.meter.text()


@pytest.mark.parametrize("kind", [fastmcp_agent, sdk_agent])
async def test_every_answer_is_its_schemas_and_its_text_the_same_json(
    gateway: Gateway, era: str, kind: Any
) -> None:
    async with kind(gateway.url, era) as agent:
        await freeze(gateway.parts.base.registry, "w", "aa", tenant=agent.tenant)
        await freeze(gateway.parts.base.registry, "e", tenant=agent.tenant)
        listed = await agent.client.list_tools()
        tools = {tool.name: tool for tool in getattr(listed, "tools", listed)}
        for tool, arguments in (
            ("window_list", {}),
            ("window_status", {"window_name": "w", "include_blocks": True}),
            ("window_status", {"session_id": "of-w"}),
            ("window_clone", {"source_window": "e", "target_window": "c"}),
            ("window_delete", {"window_name": "c"}),
            ("session_list", {}),
            ("cache_stats", {}),
            ("health_check", {}),
        ):
            answer: ToolReply = await agent.call(tool, arguments)
            assert json.loads(answer.text) == answer.value
            Draft202012Validator(tools[tool].output_schema).validate(answer.value)


async def test_resources_are_what_the_tools_answer(gateway: Gateway, agent: Agent) -> None:
    await freeze(gateway.parts.base.registry, "w", "aa", tenant=agent.tenant)
    await gateway.parts.base.registry.add_session(a_session("s", agent.tenant), ())

    async def read(uri: str) -> dict[str, Any]:
        (content,) = await agent.client.read_resource(uri)
        assert content.mime_type == "application/json"
        return dict(json.loads(content.text))

    assert await read("cwm://windows") == (await agent.call("window_list")).value
    active = (await agent.call("session_list", {"state_filter": "active"})).value
    assert await read("cwm://sessions") == active
    await gateway.parts.base.registry.add_session(
        a_session("t", agent.tenant, state=SessionState.THAWED, created_at=LATER), ()
    )
    assert [session["id"] for session in (await read("cwm://sessions"))["sessions"]] == ["t", "s"]
    stats = await read("cwm://stats")
    assert stats.pop("health")["status"] == "unhealthy"
    assert stats == (await agent.call("cache_stats")).value
    health = await read("health://status")
    assert health["status"] == "unhealthy"
    assert {c["name"] for c in health["components"]} == {"kv_store", "vllm", "registry", "coordinator"}
