"""How much of its prompt each client's conversation computes again after it was frozen and everything was killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from cwm.stack.local import LocalStack
from cwm_bench.agents.clients import CLIENTS, AgentClient
from cwm_bench.agents.conversation import Conversation, sized
from cwm_bench.agents.sides import CWM, Asked, Side, ask, asking
from cwm_bench.harness.agent import Agent, agent
from cwm_bench.harness.figures import Section, ratio
from cwm_bench.harness.gateway import QUIET, engine_variables, gateway

_TOKENS: Final = 6_000
_ANSWER_TOKENS: Final = 24
_SEED: Final = 1  # texts that no other part has


@dataclass(frozen=True, slots=True)
class Opening:
    """A conversation that was answered and frozen."""

    client: AgentClient
    session: str
    conversation: Conversation
    whole_ms: float


@dataclass(frozen=True, slots=True)
class Resumed:
    """The next request of a thawed conversation: tokens of its prompt, and of those what the engine had; ms to the answer's end.

    ``thaw_computed`` are tokens that the thaw before it computed. ``opening_ms``: of the conversation's first request, of
    which the engine had nothing.
    """

    client: str
    prompt_tokens: int
    cached_tokens: int
    thaw_computed: int
    thaw_ms: float
    whole_ms: float
    opening_ms: float

    @property
    def computed_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens


async def measure(
    stack: LocalStack, folder: Path, report: Callable[[str], None]
) -> tuple[Section, dict[str, Any]]:
    """Freeze a conversation of each client, kill engine and gateway, thaw each under its own id and go on."""
    variables, log = {**engine_variables(stack, folder), **QUIET}, folder / "gateway.log"
    async with asking() as http:
        conversation = await sized(http, stack.vllm_url, stack.model_name, _TOKENS, _SEED)
    async with gateway(variables, log) as endpoint:
        async with agent(endpoint.url, stack.model_name) as own:
            openings = [await _open(own, client, conversation, report) for client in CLIENTS]
        report("killing the engine and the gateway")
        os.kill(endpoint.pid, signal.SIGKILL)
    await stack.kill("vllm")
    await stack.kill("lmcache")
    await stack.wait_ready()
    async with gateway(variables, log) as endpoint, agent(endpoint.url, stack.model_name) as own:
        return figures([await _resume(own, opening, report) for opening in openings])


async def _open(
    own: Agent, client: AgentClient, conversation: Conversation, report: Callable[[str], None]
) -> Opening:
    report(f"a conversation of {client.name}, frozen")
    exchange = await _ask(own, client, conversation, str(uuid4()))
    await own.tool("window_freeze", session_id=exchange.session, window_name=client.name, keep_session=True)
    transcript = await own.tool("turn_show", turn=exchange.turn)
    answer = transcript["messages"][-1].get("content") or ""
    return Opening(
        client,
        exchange.session,
        conversation.goes_on(answer, "Good. What would you change?"),
        exchange.whole_ms,
    )


async def _resume(own: Agent, opening: Opening, report: Callable[[str], None]) -> Resumed:
    client = opening.client
    report(f"{client.name} goes on")
    thawed, thaw_ms = await own.timed_tool("window_thaw", window_name=client.name, as_session=opening.session)
    exchange = await _ask(own, client, opening.conversation, opening.session)
    if thawed["partial"] or exchange.session != opening.session:
        raise RuntimeError(f"{client.name} went on in {exchange.session}, not in {opening.session}: {thawed}")
    turn = (await own.tool("turn_show", turn=exchange.turn))["turn"]
    return Resumed(
        client.name,
        turn["prompt_tokens"],
        turn["cached_tokens"],
        thawed["receipt"]["tokens_recomputed"],
        thaw_ms,
        exchange.whole_ms,
        opening.whole_ms,
    )


async def _ask(own: Agent, client: AgentClient, conversation: Conversation, session: str) -> Asked:
    return await ask(own.http, Side(CWM, own.url), client, conversation, own.model, session, _ANSWER_TOKENS)


def figures(resumed: Sequence[Resumed]) -> tuple[Section, dict[str, Any]]:
    section = Section(
        f"resumed conversations of {_TOKENS:,} tokens",
        (
            "client",
            "prompt tokens",
            "computed",
            "share",
            "thaw computed",
            "thaw ms",
            "answer ms",
            "first answer ms",
        ),
        note="each frozen, engine and gateway killed and started again, thawed under the client's own session id, and continued by "
        f"the client's next request. Share: of the prompt, computed by that request; an engine that lost its caches computes all of it. Answers of {_ANSWER_TOKENS} tokens at most; "
        "first answer: of the same conversation before anything was stored. aider moves its files behind what was said",
    )
    shares = {}
    for each in resumed:
        shares[each.client] = ratio(each.computed_tokens, each.prompt_tokens)
        section.rows.append(
            (
                each.client,
                each.prompt_tokens,
                each.computed_tokens,
                shares[each.client],
                each.thaw_computed,
                round(each.thaw_ms, 1),
                round(each.whole_ms, 1),
                round(each.opening_ms, 1),
            )
        )
    return section, {"resume_prefill_share": shares}
