"""Upstreams that ask the client for input: every round goes through the gateway, which keeps nothing in between."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Context, FastMCP
from fastmcp.resources import ResourceResult
from mcp import MCPError
from mcp_types import (
    CallToolResult,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    ListRootsResult,
    ReadResourceResult,
    Root,
    TextContent,
    ToolAnnotations,
)

from cwm.domain.budgets import Budgets
from cwm.domain.tool_policy import CachePolicy, ToolPolicies, ToolPolicy
from cwm.settings import Shared
from tests.transport.mcp.conformance.rounds import add_rounds
from tests.transport.mcp.gateway import LEGACY, MODERN, Agent, gateway, sdk_agent
from tests.transport.mcp.upstream_hosts import Host, hosted
from tests.transport.mcp.upstreams.test_shared_answers import eventually_waiting

pytestmark = pytest.mark.slow

ASKS = "asks_test_input_required_result"
INVALID_PARAMS = -32602


class Person:
    """Answers whatever a server may ask: the first elicitation with the first of ``says``, and so on."""

    def __init__(self, *says: str) -> None:
        self.says = list(says)
        self.asked: list[str] = []

    async def elicited(self, _context: Any, params: Any) -> ElicitResult:
        self.asked.append(params.message)
        fields = params.requested_schema["properties"]
        return ElicitResult(action="accept", content={name: self.says.pop(0) for name in fields})

    async def sampled(self, _context: Any, params: Any) -> CreateMessageResult:
        self.asked.append(params.messages[0].content.text)
        said = TextContent(type="text", text=self.says.pop(0))
        return CreateMessageResult(role="assistant", content=said, model="a test's")

    async def rooted(self, _context: Any) -> ListRootsResult:
        self.asked.append("roots")
        return ListRootsResult(roots=[Root(uri="file:///home/ada")])

    @property
    def all(self) -> dict[str, Any]:
        """As the client takes them; those that are there are what it says that it can do."""
        return {
            "elicitation_callback": self.elicited,
            "sampling_callback": self.sampled,
            "list_roots_callback": self.rooted,
        }


class Upstream:
    """What the conformance suite asks with, a tool that only reads, and a resource."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()
        self._rounds = itertools.count()

    def add_to(self, server: FastMCP[Any]) -> None:
        add_rounds(server)

        @server.tool(annotations=ToolAnnotations(read_only_hint=True))
        async def secret(ctx: Context) -> str | InputRequiredResult:
            """Tells each what it said."""
            if ctx.input_responses:
                return said(ctx)
            self.began.set()
            await self.go_on.wait()
            return who_asks(str(next(self._rounds)))

        @server.resource("notes://locked")
        def locked(ctx: Context) -> ResourceResult | InputRequiredResult:
            """Only for those who say who they are."""
            return ResourceResult(said(ctx)) if ctx.input_responses else who_asks("resource")


def who_asks(state: str) -> InputRequiredResult:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    form = ElicitRequestFormParams(message="Who asks?", requested_schema=schema)
    question = ElicitRequest(method="elicitation/create", params=form)
    return InputRequiredResult(
        result_type="input_required", input_requests={"who": question}, request_state=state
    )


def said(ctx: Context) -> str:
    answer = (ctx.input_responses or {})["who"]
    assert isinstance(answer, ElicitResult)
    return f"{(answer.content or {}).get('name')} of {ctx.request_state}"


@pytest.fixture
def upstream() -> Upstream:
    return Upstream()


@pytest.fixture
async def host(upstream: Upstream) -> AsyncIterator[Host]:
    async with hosted(legacy=False, extend=upstream.add_to) as one:
        yield one


@asynccontextmanager
async def asking(
    folder: Path, host: Host, era: str = MODERN, tenant: str | None = None, **client: Any
) -> AsyncIterator[Agent]:
    async with (
        gateway(folder, upstreams=[host.spec("asks")]) as running,
        sdk_agent(running.url, era, tenant, **client) as agent,
    ):
        yield agent


async def first_round(agent: Agent, tool: str) -> InputRequiredResult:
    result = await agent.client.session.call_tool(tool, {}, allow_input_required=True)
    assert isinstance(result, InputRequiredResult)
    return result


async def next_round(agent: Agent, tool: str, state: str | None, **answers: Any) -> Any:
    return await agent.client.session.call_tool(
        tool, {}, input_responses=answers or None, request_state=state, allow_input_required=True
    )


def text(result: Any) -> str:
    assert isinstance(result, CallToolResult)
    content = result.content[0]
    assert isinstance(content, TextContent)
    return content.text


async def test_an_upstream_asks_the_client_and_gets_its_answer(tmp_path: Path, host: Host) -> None:
    person = Person("Ada")
    async with asking(tmp_path, host, elicitation_callback=person.elicited) as agent:
        assert (await agent.call(f"{ASKS}_elicitation")).text == "Hello, Ada!"
    assert person.asked == ["What is your name?"]


async def test_everything_that_can_be_asked_for_is_passed_on(tmp_path: Path, host: Host) -> None:
    person = Person("Paris")
    async with asking(tmp_path, host, **person.all) as agent:
        assert "Paris" in (await agent.call(f"{ASKS}_sampling")).text
        assert (await agent.call(f"{ASKS}_list_roots")).text == "file:///home/ada"
    assert person.asked == ["What is the capital of France?", "roots"]


async def test_a_call_may_take_several_rounds_and_remember_between_them(tmp_path: Path, host: Host) -> None:
    person = Person("Ada", "blue")
    async with asking(tmp_path, host, **person.all) as agent:
        assert (await agent.call(f"{ASKS}_multi_round")).text == "Ada likes blue."


async def test_prompts_and_resources_ask_as_well(tmp_path: Path, host: Host) -> None:
    person = Person("teatime", "Ada")
    async with asking(tmp_path, host, **person.all) as agent:
        prompt = await agent.client.get_prompt(f"{ASKS}_prompt")
        assert prompt.messages[0].content.text == "Use this context: teatime"
        read = await agent.client.read_resource("notes://asks/locked")
        assert isinstance(read, ReadResourceResult)
        assert read.contents[0].text == "Ada of resource"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("able", "asked"),
    [
        ((), set()),
        (("elicitation_callback",), {"elicited"}),
        (("sampling_callback",), {"sampled"}),
        (("elicitation_callback", "sampling_callback"), {"elicited", "sampled"}),
    ],
)
async def test_an_upstream_is_told_what_this_callers_client_can_do(
    tmp_path: Path, host: Host, able: tuple[str, ...], asked: set[str]
) -> None:
    person = Person().all
    async with asking(tmp_path, host, **{name: person[name] for name in able}) as agent:
        result = await agent.client.session.call_tool(f"{ASKS}_capabilities", {}, allow_input_required=True)
    questions = result.input_requests if isinstance(result, InputRequiredResult) else {}
    assert set(questions or {}) == asked


async def test_what_an_upstream_remembers_is_sealed_and_bound_to_who_was_asked(
    tmp_path: Path, host: Host
) -> None:
    tool = f"{ASKS}_request_state"
    confirmed = ElicitResult(action="accept", content={"ok": True})
    async with (
        gateway(tmp_path, upstreams=[host.spec("asks")]) as running,
        sdk_agent(running.url, MODERN, "acme", **Person().all) as agent,
        sdk_agent(running.url, MODERN, "rival", **Person().all) as rival,
    ):
        state = (await first_round(agent, tool)).request_state
        assert state is not None
        assert "remembered" not in state
        flipped = state[:-5] + ("A" if state[-5] != "A" else "B") + state[-4:]
        for who, what, forged in (
            (rival, tool, state),
            (agent, f"{ASKS}_multi_round", state),
            (agent, tool, flipped),
            (agent, tool, "remembered"),
        ):
            with pytest.raises(MCPError) as refused:
                await next_round(who, what, forged, confirm=confirmed)
            assert refused.value.error.code == INVALID_PARAMS
        assert text(await next_round(agent, tool, state, confirm=confirmed)) == "state-ok"


async def test_another_replica_takes_the_next_round(tmp_path: Path, host: Host, redis_url: str) -> None:
    shared, spec = Shared(shared_store_url=redis_url), host.spec("asks")
    tool, confirmed = f"{ASKS}_request_state", ElicitResult(action="accept", content={"ok": True})
    async with (
        gateway(tmp_path, shared=shared, upstreams=[spec]) as one,
        gateway(tmp_path, shared=shared, upstreams=[spec]) as other,
        sdk_agent(one.url, MODERN, "acme", **Person().all) as agent,
        sdk_agent(other.url, MODERN, "acme", **Person().all) as elsewhere,
    ):
        state = (await first_round(agent, tool)).request_state
        assert text(await next_round(elsewhere, tool, state, confirm=confirmed)) == "state-ok"


async def test_questions_and_what_was_said_are_never_shared(
    tmp_path: Path, host: Host, upstream: Upstream
) -> None:
    names = ("Ada", "Bob", "Cleo")
    async with AsyncExitStack() as stack:
        shared = ToolPolicies(by_name={"asks_secret": ToolPolicy(cache=CachePolicy(60))})
        running = await stack.enter_async_context(
            gateway(tmp_path, upstreams=[host.spec("asks")], budgets=Budgets(policies=shared))
        )
        agents = [
            await stack.enter_async_context(sdk_agent(running.url, MODERN, "acme", **Person(name).all))
            for name in names
        ]
        calls = [asyncio.create_task(agent.call("asks_secret")) for agent in agents]
        await upstream.began.wait()
        await eventually_waiting(running, len(names))
        upstream.go_on.set()
        told = [(await call).text.partition(" of ") for call in calls]
    assert [who for who, _, _ in told] == list(names)
    assert len({state for _, _, state in told}) == len(names)


async def test_a_client_of_the_handshake_era_is_told_that_it_cannot_be_asked(
    tmp_path: Path, host: Host
) -> None:
    async with asking(tmp_path, host, LEGACY, **Person("Ada").all) as agent:
        for ask in _whatever_asks(agent):
            with pytest.raises(MCPError, match="only a client of 2026-07-28") as refused:
                await ask()
            assert refused.value.error.code == INVALID_PARAMS


def _whatever_asks(agent: Agent) -> list[Callable[[], Any]]:
    return [
        lambda: agent.client.call_tool(f"{ASKS}_elicitation", {}),
        lambda: agent.client.get_prompt(f"{ASKS}_prompt"),
        lambda: agent.client.read_resource("notes://asks/locked"),
    ]
