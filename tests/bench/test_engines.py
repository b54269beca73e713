"""The engines that benchmarks start: what is kept from them, and what they keep off."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cwm.cli.root import app
from cwm.settings import LocalEngine, Storage
from cwm.stack import local
from cwm.stack import plan as planning
from cwm.stack.environment import EngineEnvironment
from cwm.stack.errors import StackError
from cwm.stack.local import LocalStack
from cwm.stack.models import Model
from cwm.stack.plan import StackPlan, plan_from_settings
from cwm_bench.harness import bare_engine

pytestmark = pytest.mark.slow

WITHHELD = frozenset({"NOTES_TOKEN"})
BENCHES = pytest.mark.parametrize("bench", ["main", "planner", "faults", "arms"])


def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench: str) -> StackPlan:
    """What a benchmark would start; its engine refuses to."""
    plans: list[StackPlan] = []

    async def refuse(stack: LocalStack) -> LocalStack:
        plans.append(stack.plan)
        raise StackError("no engine today.")

    monkeypatch.setattr(local.LocalStack, "__aenter__", refuse)
    monkeypatch.setattr(planning, "_shm_free_gb", lambda: 32.0)
    monkeypatch.setattr(planning, "_free_gb", lambda: 64.0)
    monkeypatch.setenv("CWM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CWM_DEVICE", "cpu")
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(app, ["bench", bench])
    assert "No engine today." in run.output
    (plan,) = plans
    return plan


@BENCHES
def test_the_engine_of_a_benchmark_is_not_given_what_only_upstreams_may_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench: str
) -> None:
    monkeypatch.setenv("NOTES_TOKEN", "hush")
    (tmp_path / "cwm.yaml").write_text(
        "upstreams: {notes: {url: 'https://notes.example/mcp', headers: {X-Key: '${NOTES_TOKEN}'}}}"
    )
    assert planned(tmp_path, monkeypatch, bench).withheld == WITHHELD


@BENCHES
def test_a_benchmark_which_flushes_and_damages_what_is_stored_keeps_off_the_redis_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench: str
) -> None:
    monkeypatch.setenv("CWM_REDIS_URL", "valkey://:hunter2@redis.example:6379/3")
    assert planned(tmp_path, monkeypatch, bench).redis is None


@BENCHES
def test_what_a_benchmark_s_engine_writes_goes_with_the_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench: str
) -> None:
    plan = planned(tmp_path, monkeypatch, bench)
    assert plan.logs.is_relative_to(plan.storage_path.parent)
    assert not plan.storage_path.parent.exists()


async def test_nor_is_an_engine_without_a_cache_nor_what_prepares_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[object] = []
    python = tmp_path / "engine" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\nenv > {tmp_path}/given\nexit 1\n")
    python.chmod(0o755)

    async def environment(*arguments: object) -> EngineEnvironment:
        prepared.append(arguments[-1])
        return EngineEnvironment(tmp_path / "engine")

    async def model(*arguments: object) -> Model:
        prepared.append(arguments[-1])
        return Model(tmp_path, "none", 64)

    monkeypatch.setattr(bare_engine, "prepare_environment", environment)
    monkeypatch.setattr(bare_engine, "prepare_model", model)
    monkeypatch.setattr(planning, "_shm_free_gb", lambda: 32.0)
    monkeypatch.setattr(planning, "_free_gb", lambda: 64.0)
    monkeypatch.setenv("NOTES_TOKEN", "hush")
    plan = plan_from_settings(
        Storage(storage_path=tmp_path / "storage"),
        LocalEngine(home=tmp_path / "home", device="cpu"),
        withheld=WITHHELD,
    )

    with pytest.raises(StackError):
        async with bare_engine.bare_engine(plan, tmp_path, lambda _: None):
            pass

    assert prepared == [WITHHELD, WITHHELD]
    assert "hush" not in (tmp_path / "given").read_text()
