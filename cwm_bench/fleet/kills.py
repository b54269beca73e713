"""SIGKILLs of an engine in mid-stream, and what the client of the stream receives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from cwm.stack.engine import StackEngine
from cwm_bench.fleet.fleet import Fleet, named, past_the_gateways
from cwm_bench.fleet.stream import CHAT, COMPLETIONS, StreamedAnswer, stream
from cwm_bench.harness.agent import Agent
from cwm_bench.harness.figures import Section

_TOKENS: Final = 64
_THEMES: Final = ("Zürich in snow", "naïve cafés", "a harbour at dawn 🎉", "copper and rain", "an old orchid")
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "read_notes",
        "description": "Reads notes.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}


@dataclass(frozen=True, slots=True)
class Request:
    """``kill_after``: the client has received so many tokens when the engine is killed."""

    kind: str
    path: str
    body: Mapping[str, Any]
    kill_after: int


@dataclass(frozen=True, slots=True)
class Killed:
    """``went_on``: how many answers went on at another engine, as the gateways count them."""

    request: Request
    engine: str
    answer: StreamedAnswer
    undisturbed: StreamedAnswer
    seen_tokens: int
    went_on: int

    @property
    def is_unnoticed(self) -> bool:
        """Whether the client got one whole stream, equal to the undisturbed one, that another engine finished."""
        return self.answer.is_whole and self.answer.equals(self.undisturbed) and self.went_on == 1

    @property
    def became(self) -> str:
        if self.is_unnoticed:
            return "unnoticed"
        if not self.answer.is_whole:
            return f"BROKE OFF: {self.answer.fault or 'no end'}"
        return "DIFFERENT" if self.went_on else "already complete"


def request(number: int) -> Request:
    """The request of a kill: text, text beside tools, a tool call, a completion."""
    theme = f"{_THEMES[number % len(_THEMES)]} ({number})"
    poem = {
        "messages": [{"role": "user", "content": f"Write a poem about {theme}."}],
        "max_tokens": _TOKENS,
        "ignore_eos": True,
    }
    tools = {"tools": [_TOOL], "tool_choice": "auto"}
    late = 2 + number * 7 % (_TOKENS * 3 // 4)
    match number % 4:
        case 0:
            return Request("chat", CHAT, poem, late)
        case 1:
            return Request("chat with tools", CHAT, {**poem, **tools}, late)
        case 2:
            body = {"messages": _calls(f"notes-{number}.txt"), "max_tokens": _TOKENS, **tools}
            return Request("tool call", CHAT, body, 2 + number * 5 % 15)
        case _:
            prompt = {"prompt": f"A poem about {theme}:", "max_tokens": _TOKENS, "ignore_eos": True}
            return Request("completion", COMPLETIONS, prompt, late)


def _calls(path: str) -> Sequence[Mapping[str, str]]:
    """Messages after which the small model calls the tool again."""
    question = {"role": "user", "content": f"Read {path}."}
    call = json.dumps({"name": "read_notes", "arguments": {"path": path}})
    answer = {"role": "assistant", "content": f"<tool_call>\n{call}\n</tool_call>"}
    return [question, answer, question, answer, question]


async def measure(fleet: Fleet, kills: int) -> tuple[Section, dict[str, Any]]:
    killed = []
    for number in range(kills):
        engine = fleet.small_engines[number % 2]
        client = fleet.agents[number // 2 % len(fleet.agents)]
        outcome = await _killed(fleet, client, engine, request(number))
        killed.append(outcome)
        fleet.report(
            f"kill {number + 1} of {kills}: {engine.name} after {outcome.seen_tokens} of {len(outcome.undisturbed.ids)} tokens "
            f"of a {outcome.request.kind}: {outcome.became}"
        )
        await fleet.back()
    return figures(killed)


async def _killed(fleet: Fleet, client: Agent, engine: StackEngine, request: Request) -> Killed:
    session = fleet.session()
    body = {**request.body, "model": client.model}
    alone = body | past_the_gateways(f"undisturbed-{uuid4().hex}")
    undisturbed = (await stream(fleet.http, engine.vllm_url, request.path, alone)).sound()
    await stream(client.http, client.url, request.path, body | {"max_tokens": 1}, named(session))
    await fleet.place(session, engine)
    before = await fleet.events("answer_gone_on")
    watch = _Watch(request.kill_after)
    streaming = asyncio.create_task(_streamed(client, request.path, body, session, watch))
    try:
        await watch.reached.wait()
        await fleet.kill(engine)
        answer = await streaming
    finally:
        streaming.cancel()
    went_on = int(await fleet.events("answer_gone_on") - before)
    return Killed(request, engine.name, answer, undisturbed, request.kill_after, went_on)


@dataclass(slots=True)
class _Watch:
    """``reached`` is set once a stream has so many tokens, or has ended."""

    tokens: int
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    def see(self, count: int) -> None:
        if count >= self.tokens:
            self.reached.set()


async def _streamed(
    client: Agent, path: str, body: Mapping[str, Any], session: str, watch: _Watch
) -> StreamedAnswer:
    try:
        return await stream(client.http, client.url, path, body, named(session), on_tokens=watch.see)
    finally:
        watch.reached.set()


def figures(killed: Sequence[Killed]) -> tuple[Section, dict[str, Any]]:
    section = Section(
        "kills: SIGKILL to the vLLM that streams an answer",
        ("kill", "engine", "request", "at token", "of", "tool calls", "the stream"),
        [
            (
                number,
                each.engine,
                each.request.kind,
                each.seen_tokens,
                len(each.undisturbed.ids),
                len(each.answer.calls),
                each.became,
            )
            for number, each in enumerate(killed, 1)
        ],
        note="unnoticed: one stream, with its end and one id, and the tokens, text, tool calls and finish reason of the same request past the gateways before the kill; "
        "the gateways counted an answer that went on elsewhere",
    )
    with_tools = [each for each in killed if "tools" in each.request.body]
    return section, {
        "kills": len(killed),
        "kills_unnoticed": sum(each.is_unnoticed for each in killed),
        "kills_with_tools": len(with_tools),
        "kills_with_tools_unnoticed": sum(each.is_unnoticed for each in with_tools),
        "kills_with_a_tool_call": sum(bool(each.undisturbed.calls) for each in with_tools),
    }
