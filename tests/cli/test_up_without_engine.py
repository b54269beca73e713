"""``cwm up`` up to where the engine would be started."""

from __future__ import annotations

import json
import os
from pathlib import Path
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from cwm.cli.root import app
from cwm.stack import local, proc, shm
from cwm.stack import plan as planning
from cwm.stack.errors import StackError
from cwm.stack.local import LocalStack
from cwm.stack.plan import StackPlan
from tests.postgres import free_port

pytestmark = pytest.mark.slow


def test_the_engine_is_told_which_port_is_the_gateway_s_and_what_only_upstreams_may_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[StackPlan] = []

    async def refuse(stack: LocalStack) -> LocalStack:
        plans.append(stack.plan)
        raise StackError("no engine today.")

    monkeypatch.setattr(local.LocalStack, "__aenter__", refuse)
    monkeypatch.setenv("CWM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CWM_DB_PATH", str(tmp_path / "cwm.db"))
    monkeypatch.setattr(planning, "_shm_free_gb", lambda: 32.0)
    monkeypatch.setattr(planning, "_free_gb", lambda: 64.0)
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(app, ["migrate"])
    (tmp_path / "cwm.yaml").write_text(
        "upstreams: {notes: {url: 'https://notes.example/mcp', headers: {X-Key: '${NOTES_TOKEN}'}}}"
    )
    monkeypatch.setenv("NOTES_TOKEN", "hush")
    port = free_port()

    run = CliRunner().invoke(
        app,
        ["up", "--port", str(port), "--device", "cpu", "--storage-path", str(tmp_path), "--engines", "3"],
    )

    assert "No engine today." in run.output
    assert [len(plan.engines) for plan in plans] == [3]
    assert [(plan.gateway_port, plan.withheld) for plan in plans] == [(port, frozenset({"NOTES_TOKEN"}))]


def test_a_secret_file_that_cannot_be_made_is_told_before_an_engine_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(_: LocalStack) -> LocalStack:
        pytest.fail("it was started")

    monkeypatch.setattr(local.LocalStack, "__aenter__", start)
    monkeypatch.setenv("CWM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CWM_DB_PATH", str(tmp_path / "cwm.db"))
    monkeypatch.setenv("CWM_DEVICE", "cpu")
    monkeypatch.setattr(planning, "_shm_free_gb", lambda: 32.0)
    monkeypatch.setattr(planning, "_free_gb", lambda: 64.0)
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(app, ["migrate"])
    (tmp_path / "file").touch()
    monkeypatch.setenv("CWM_SECRET_FILE", str(tmp_path / "file" / "secret"))

    run = CliRunner().invoke(app, ["up", "--port", "0", "--storage-path", str(tmp_path)])

    assert "CWM-1003: CWM_SECRET_FILE" in run.output


@pytest.mark.parametrize("options", [[], ["--keep"]], ids=["", "keep"])
def test_a_demo_s_folder_is_not_to_outlive_it_unless_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    plans: list[StackPlan] = []

    async def refuse(stack: LocalStack) -> LocalStack:
        plans.append(stack.plan)
        raise StackError("no engine today.")

    monkeypatch.setattr(local.LocalStack, "__aenter__", refuse)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("CWM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CWM_DEVICE", "cpu")
    monkeypatch.setattr(planning, "_shm_free_gb", lambda: 32.0)
    monkeypatch.setattr(planning, "_free_gb", lambda: 64.0)
    monkeypatch.chdir(tmp_path)

    CliRunner().invoke(app, ["demo", *options])

    (plan,) = plans
    assert plan.temporary == (None if options else plan.storage_path.parent)


@pytest.mark.parametrize("command", [("up", "--port", "0"), ("demo",)], ids=["up", "demo"])
def test_the_memory_of_a_demo_that_was_killed_is_given_back_before_sizes_are_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    key = f"cwm-{uuid4().hex[:12]}"
    left = tmp_path / "run" / f"{key}.json"
    left.parent.mkdir()
    left.write_text(json.dumps({"boot": proc.boot_id(), "owner": {"pid": os.getpid(), "started": 1}}))
    pool = shm.FOLDER / f"lmcache_l1_pool_{key}"
    pool.touch()
    monkeypatch.setenv("CWM_HOME", str(tmp_path))
    monkeypatch.setenv("CWM_DB_PATH", str(tmp_path / "cwm.db"))
    monkeypatch.setattr(planning, "_shm_free_gb", lambda: 0.0)
    monkeypatch.setattr(planning, "_free_gb", lambda: 64.0)
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(app, ["migrate"])
    try:
        run = CliRunner().invoke(app, [*command])

        assert "too little for a window" in run.output
        assert not pool.exists()
        assert not left.exists()
    finally:
        pool.unlink(missing_ok=True)
