"""A stack of several engines, with programs that only live in the places of LMCache and vLLM."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from cwm.cli.up import at_stack
from cwm.settings import Settings
from cwm.stack import local
from cwm.stack.commands import Commands
from cwm.stack.environment import EngineEnvironment
from cwm.stack.errors import StackError
from cwm.stack.models import Model
from cwm.stack.plan import StackPlan
from cwm.stack.ports import Ports
from tests.eventually import eventually
from tests.stack.shapes import PlanFor
from tests.stack.stand_ins import LIVES, StandIns, environment

pytestmark = pytest.mark.slow

DIES_THE_SECOND_TIME = f"""
import os, pathlib
begun = pathlib.Path(os.environ["CWM_ENGINE_ARGS"])
if begun.exists():
    os.ftruncate(1, 0)  # its log, which says that it is up
    exit("no second start")
begun.touch()
{LIVES}
"""


@pytest.fixture
def plan(plan_for: PlanFor, monkeypatch: pytest.MonkeyPatch) -> StackPlan:
    """A plan of two engines whose environment and models are there."""

    async def model(wanted: str, home: Path, *_: object) -> Model:
        return Model(home / wanted, wanted, 64)

    monkeypatch.setattr(local, "prepare_environment", environment)
    monkeypatch.setattr(local, "prepare_model", model)
    monkeypatch.setattr("cwm.stack.part._BACKOFF_SECONDS", (0.0,))
    return plan_for(model="tiny").with_another()


def test_what_two_engines_would_fight_for_each_has_of_its_own(plan: StackPlan, tmp_path: Path) -> None:
    one, two = (
        Commands(each, EngineEnvironment(tmp_path), Model(tmp_path, "tiny", 64), Ports(), tmp_path, tmp_path)
        for each in plan.engines
    )
    arguments = [commands.lmcache_arguments() for commands in (one, two)]
    for option in ("--instance-id", "--shm-name"):
        names = [argv[argv.index(option) + 1] for argv in arguments]
        assert names == [plan.key, f"{plan.key}-2"]
    assert [
        str(tmp_path / "storage" / name) in " ".join(argv)
        for argv, name in zip(arguments, ("kv", "kv-2"), strict=True)
    ] == [True, True]
    assert one.vllm() == two.vllm(), "so that they are one deployment"


async def test_a_stack_of_two_tells_the_gateway_of_both_and_has_one_coordinator(plan: StackPlan) -> None:
    async with StandIns(plan, report=print) as stack:
        one, two = stack.engines
        assert not {*one.reserved.chosen.as_dict().items()} & {
            item for item in two.reserved.chosen.as_dict().items() if item[0] not in {"coordinator", "valkey"}
        }
        served = at_stack(Settings(), stack)

        assert list(served.engines) == ["engine-1", "engine-2"]
        assert [each.vllm_url for each in served.engines.values()] == [one.vllm_url, two.vllm_url]
        assert [each.lmcache_url for each in served.engines.values()] == [one.lmcache_url, two.lmcache_url]
        assert {each.coordinator_url for each in served.engines.values()} == {stack.coordinator_url}
        assert sorted(log.name for log in plan.logs.iterdir()) == [
            "lmcache-2.log", "lmcache.log", "vllm-2.log", "vllm.log",
        ]  # fmt: skip


async def test_a_stack_of_one_is_the_engine_of_the_settings(plan_for: PlanFor, plan: StackPlan) -> None:
    async with StandIns(plan_for(model="tiny"), report=print) as stack:
        served = at_stack(Settings(), stack)

        assert (served.engines, served.engine.vllm_url) == ({}, stack.vllm_url)


async def test_engines_of_one_stack_may_have_different_models(plan: StackPlan) -> None:
    async with StandIns(plan.with_another(model="smollm2-135m"), report=print) as stack:
        assert [engine.model_name for engine in stack.engines] == ["tiny", "tiny", "smollm2-135m"]
        assert {engine.plan.chunk_size for engine in stack.engines} == {plan.chunk_size}


async def test_an_engine_that_dies_is_started_again_and_the_other_goes_on(plan: StackPlan) -> None:
    async with StandIns(plan, report=print) as stack:
        untouched = stack.pids("vllm-2") + stack.pids("lmcache-2")
        await stack.hold_down("lmcache")
        await stack.kill("vllm")
        await eventually(lambda: stack.restarts["vllm"] == 1)
        assert stack.pids("vllm") == [], "it needs its own LMCache"
        await stack.kill("vllm-2")
        await eventually(lambda: stack.restarts["vllm-2"] == 1 and bool(stack.pids("vllm-2")))
        stack.let_up("lmcache")
        await stack.wait_ready(20)

        assert [stack.restarts[part] for part in ("lmcache", "vllm", "lmcache-2", "vllm-2")] == [1, 1, 0, 1]
        assert stack.pids("lmcache-2")[0] in untouched


async def test_an_engine_that_cannot_be_started_again_leaves_the_other_and_the_last_one_ends_the_stack(
    plan: StackPlan, tmp_path: Path
) -> None:
    reports: list[str] = []
    begun = [{"CWM_ENGINE_ARGS": str(tmp_path / name)} for name in ("one", "two")]
    plan = replace(plan, serving_variables=begun[0], others=({"serving_variables": begun[1]},))
    async with StandIns(plan, report=reports.append, vllm=DIES_THE_SECOND_TIME) as stack:
        ending = asyncio.create_task(stack.run_until_failure())
        await stack.kill("vllm-2")
        await eventually(lambda: any(line.startswith("engine-2 stays away: vLLM") for line in reports))
        assert not ending.done()
        assert stack.pids("vllm")

        await stack.kill("vllm")
        with pytest.raises(StackError, match="vLLM of engine-1 does not start"):
            await ending
