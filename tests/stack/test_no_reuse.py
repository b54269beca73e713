"""A stack whose vLLM says that it reuses no KV: it never talks to LMCache, and nobody waits for that."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from cwm.stack import local
from cwm.stack.engine import StackEngine
from cwm.stack.errors import StackError
from cwm.stack.local import LocalStack
from cwm.stack.part import Recipe
from cwm.stack.ports import Ports
from tests.eventually import eventually
from tests.stack.shapes import PlanFor
from tests.stack.stand_ins import StandIns, environment, model
from tests.transport.llm.gateway import serving

pytestmark = pytest.mark.slow

WHY = "vLLM's prefix cache is off."


@dataclass
class Answers:
    """What vLLM, LMCache's server and its coordinator answer. ``attached``: vLLM is, and has looked something up."""

    no_reuse: str = ""
    attached: bool = False
    instance: str = ""

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/completions", self._complete, methods=["POST"]),
                Route("/status", self._status),
                Route("/metrics", self._metrics),
                Route("/instances", self._instances),
            ]
        )

    async def _complete(self, request: Request) -> Response:
        asked = (await request.json())["kv_transfer_params"]
        tells = asked["cwm.tell_weights"] and self.no_reuse
        return JSONResponse({"kv_transfer_params": {"cwm.no_reuse": self.no_reuse} if tells else None})

    async def _status(self, _: Request) -> Response:
        return JSONResponse({"worker_liveness": {"tracked_instances": int(self.attached)}})

    async def _metrics(self, _: Request) -> Response:
        return PlainTextResponse(f"lmcache_mp_lookup_requested_tokens_total {float(self.attached)}\n")

    async def _instances(self, _: Request) -> Response:
        return JSONResponse({"instances": [{"instance_id": self.instance}]})


class Answering(StandIns):
    """Its parts are warmed up and looked at as real ones are, at another port."""

    at: int = 0

    def _describe(self, engines: Sequence[StackEngine]) -> None:
        there = Ports(vllm=self.at, lmcache=self.at, coordinator=self.at)
        super()._describe([replace(each, commands=replace(each.commands, ports=there)) for each in engines])

    def _recipe(self, real: Recipe, script: str, variables: Mapping[str, str]) -> Recipe:
        return replace(super()._recipe(real, script, variables), warm_up=real.warm_up)

    async def _connected(self) -> bool:
        return await LocalStack._connected(self)


@asynccontextmanager
async def started(
    answers: Answers, plan_for: PlanFor, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> AsyncIterator[LocalStack]:
    monkeypatch.setattr(local, "prepare_environment", environment)
    monkeypatch.setattr(local, "prepare_model", model)
    plan = plan_for(model="tiny")
    answers.instance = plan.instance
    async with serving(answers.app()) as url:
        stack = Answering(plan, report=said.append)
        stack.at = int(url.rpartition(":")[2])
        async with stack:
            yield stack


async def test_it_is_ready_although_vllm_is_not_attached_and_the_start_says_why(
    plan_for: PlanFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    async with started(Answers(no_reuse=WHY), plan_for, monkeypatch, said) as stack:
        assert stack.no_reuse(stack.engines[0]) == WHY
        await stack.wait_ready(20)
    assert said.count(f"{WHY} Windows keep their tokens, a thaw computes their KV again.") == 1


async def test_one_that_reuses_kv_is_ready_when_vllm_has_asked_lmcache(
    plan_for: PlanFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    answers = Answers(attached=True)
    async with started(answers, plan_for, monkeypatch, said) as stack:
        assert stack.no_reuse(stack.engines[0]) == ""
        answers.attached = False
        with pytest.raises(StackError, match="not ready: their connection"):
            await stack.wait_ready(0.5)
    assert not any("Windows keep their tokens" in line for line in said)


async def test_a_vllm_that_starts_again_and_reuses_kv_then_is_waited_for_again(
    plan_for: PlanFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers(no_reuse=WHY)
    async with started(answers, plan_for, monkeypatch, []) as stack:
        answers.no_reuse = ""
        await stack.kill("vllm")
        await eventually(lambda: stack.no_reuse(stack.engines[0]) == "")
        with pytest.raises(StackError, match="not ready: their connection"):
            await stack.wait_ready(0.5)
        answers.attached = True
        await stack.wait_ready(20)
