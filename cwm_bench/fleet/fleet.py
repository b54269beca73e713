"""Starts two engines of the small model, one of the tiny model, and two gateways with one registry."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import httpx2
import yaml

from cwm.adapters.lmcache.client import LmcacheTier
from cwm.settings import Engine, Settings
from cwm.stack.engine import StackEngine
from cwm.stack.local import LocalStack
from cwm.stack.models import SMOLLM2, TINY
from cwm.stack.plan import StackPlan, plan_from_settings
from cwm_bench.fleet.stream import COMPLETIONS, StreamedAnswer, stream
from cwm_bench.harness.agent import Agent, agent
from cwm_bench.harness.caches import empty_memory, stored
from cwm_bench.harness.gateway import QUIET, engine_variables, gateway

CHUNK: Final = 64
_GATEWAYS: Final = 2
_POLL_SECONDS: Final = 0.1
_LISTED_SECONDS: Final = 60.0
_READY_SECONDS: Final = 400.0
_GB: Final = 1.0
_DISK_GB: Final = 4.0
_VALKEY_GB: Final = 2.0
_GENERATED: Final = "vllm:request_generation_tokens"


@dataclass(slots=True)
class Fleet:
    """A running fleet. ``agents``: one client per gateway; ``next_agent`` returns them in turns."""

    stack: LocalStack
    agents: Sequence[Agent]
    report: Callable[[str], None]
    _sessions: list[str] = field(default_factory=list)
    _turns: Iterator[Agent] = field(init=False)

    def __post_init__(self) -> None:
        self._turns = itertools.cycle(self.agents)

    def next_agent(self) -> Agent:
        """A client of the next gateway, round-robin."""
        return next(self._turns)

    @property
    def http(self) -> httpx2.AsyncClient:
        return self.agents[0].http

    @property
    def small_engines(self) -> tuple[StackEngine, StackEngine]:
        """The engines of the small model."""
        one, two, *_ = self.stack.engines
        return one, two

    def other(self, engine: StackEngine) -> StackEngine:
        """The other engine of the small model."""
        one, two = self.small_engines
        return two if engine is one else one

    def session(self, name: str | None = None) -> str:
        """A new session id, or ``name`` itself; ``forget`` deletes the session."""
        self._sessions.append(name or f"fleet_{uuid4().hex[:12]}")
        return self._sessions[-1]

    async def forget(self) -> None:
        """Delete all sessions so far, so that a later drain moves only its own."""
        while self._sessions:
            await self.next_agent().tool("session_delete", session_id=self._sessions.pop())

    async def turn(self, session: str, prompt: Sequence[int], max_tokens: int) -> StreamedAnswer:
        """Ask ``prompt`` in the session through the next gateway. Raises RuntimeError unless the answer is whole."""
        client = self.next_agent()
        body = greedy(client.model, prompt, max_tokens)
        return (await stream(client.http, client.url, COMPLETIONS, body, named(session))).sound()

    async def alone(
        self, engine: StackEngine, prompt: Sequence[int], max_tokens: int, salt: str
    ) -> StreamedAnswer:
        """Ask the engine directly. It stores nothing in LMCache; its prefix cache reuses only what has the same salt."""
        body = greedy(engine.model_name, prompt, max_tokens) | past_the_gateways(salt)
        return (await stream(self.http, engine.vllm_url, COMPLETIONS, body)).sound()

    async def place(self, session: str, engine: StackEngine) -> None:
        """Move the session to ``engine`` if another one serves it."""
        await self.next_agent().tool("session_move", session_id=session, engine=engine.name)

    async def stored(self) -> None:
        """Wait until the LMCache servers of the small model have written every chunk to Valkey and disk."""
        for engine in self.small_engines:
            settings = Engine(lmcache_url=engine.lmcache_url, coordinator_url=self.stack.coordinator_url)
            async with aclosing(LmcacheTier(settings)) as kv_tier:
                await stored(kv_tier)

    async def empty(self, *engines: StackEngine) -> None:
        """Empty vLLM's and LMCache's memory of these engines, so that KV comes from the shared tiers."""
        await self.stored()
        for engine in engines:
            await empty_memory(self.http, engine)

    async def kill(self, engine: StackEngine) -> None:
        """SIGKILL to all processes of its vLLM; the stack starts it again."""
        await self.stack.kill(engine.plan.own("vllm"))

    async def back(self) -> None:
        """Wait until every engine is ready and both gateways list it as answering."""
        await self.stack.wait_ready(_READY_SECONDS)
        async with asyncio.timeout(_LISTED_SECONDS):
            for client in self.agents:
                while not await self._all_listed(client):  # noqa: ASYNC110 - polled over HTTP
                    await asyncio.sleep(_POLL_SECONDS)

    async def _all_listed(self, client: Agent) -> bool:
        engines = (await client.tool("engine_list"))["engines"]
        return len(engines) == len(self.stack.engines) and all(
            each["answers"] and each["deployments"] for each in engines
        )

    async def events(self, event: str) -> float:
        """The count of this event, over both gateways."""
        label = f'event="{event}"'
        return sum([await self.counted(each.url, "cwm_events_total", label) for each in self.agents])

    async def answered(self, engine: StackEngine, beyond: int = 1) -> int:
        """Requests for more than ``beyond`` tokens (1, 2, 5, 10) that its vLLM has answered since it started.

        The gateways' own requests, about the weights, ask for one token; the stack's warm-up asks for four.
        """
        text = (await self.http.get(f"{engine.vllm_url}/metrics")).raise_for_status().text
        shorter = counter(text, f"{_GENERATED}_bucket", f'le="{beyond:.1f}"')
        return round(counter(text, f"{_GENERATED}_count") - shorter)

    async def counted(self, url: str, name: str, label: str = "") -> float:
        """The sum of a counter with this label at ``/metrics``."""
        text = (await self.http.get(f"{url}/metrics")).raise_for_status().text
        return counter(text, name, label)


def counter(text: str, name: str, label: str = "") -> float:
    """The sum of the samples of a counter in Prometheus' text format."""
    samples = (line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} ")))
    return sum(float(line.rpartition(" ")[2]) for line in samples if label in line)


def greedy(model: str, prompt: Sequence[int], max_tokens: int) -> dict[str, Any]:
    return {"model": model, "prompt": list(prompt), "max_tokens": max_tokens, "ignore_eos": True}


def past_the_gateways(salt: str) -> dict[str, Any]:
    return {"cache_salt": salt, "kv_transfer_params": {"lmcache.max_offload_tokens": 0}}


def named(session: str) -> dict[str, str]:
    return {"CWM-Session-Id": session}


@asynccontextmanager
async def fleet(settings: Settings, folder: Path, report: Callable[[str], None]) -> AsyncIterator[Fleet]:
    """Start engines and gateways; they store everything in ``folder``. Raises StackError."""
    plan = fleet_plan(settings, folder, report)
    async with AsyncExitStack() as resources:
        stack = await resources.enter_async_context(LocalStack(plan, report=report))
        variables = _variables(stack, folder)
        agents = []
        for number in range(1, _GATEWAYS + 1):
            endpoint = await resources.enter_async_context(
                gateway(variables, folder / f"gateway-{number}.log")
            )
            agents.append(await resources.enter_async_context(agent(endpoint.url, stack.model_name)))
        ready = Fleet(stack, agents, report)
        await ready.back()
        yield ready


def fleet_plan(settings: Settings, folder: Path, report: Callable[[str], None]) -> StackPlan:
    """Three engines with equal chunks, the third with the tiny model, and their own Valkey. Raises StackError."""
    storage = settings.storage.model_copy(
        update={
            "storage_path": folder / "storage",
            "redis_url": None,
            "cpu_cache_gb": _GB,
            "disk_cache_gb": 3 * _DISK_GB,
            "redis_cache_gb": _VALKEY_GB,
        }
    )
    local = settings.local_engine.model_copy(
        update={
            "model": SMOLLM2,
            "served_model_name": None,
            "device": "cpu",
            "dtype": "float32",
            "chunk_size": CHUNK,
            "kv_cache_gb": _GB,
        }
    )
    plan = plan_from_settings(storage, local, withheld=settings.upstream_variables, engines=3, log=report)
    return replace(plan, dev_endpoints=True, run_folder=folder / "run", others=({}, {"model": TINY}))


def _variables(stack: LocalStack, folder: Path) -> Mapping[str, str]:
    """``CWM_*`` variables of both gateways: one registry, one shared store, one list of engines."""
    config = folder / "cwm.yaml"
    engines = {
        engine.name: {"url": engine.vllm_url, "lmcache": engine.lmcache_url} for engine in stack.engines
    }
    config.write_text(yaml.safe_dump({"engines": engines}), encoding="utf-8")
    return {
        **engine_variables(stack, folder),
        **QUIET,
        "CWM_CONFIG": str(config),
        "CWM_SHARED_STORE_URL": stack.redis_url,
    }
