"""What the tests of the local stack share."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cwm import settings
from cwm.stack import plan as planning
from cwm.stack import ports
from cwm.stack.plan import StackPlan, plan_from_settings
from tests.stack.shapes import Eventually, PlanFor


@pytest.fixture
def eventually() -> Eventually:
    """Wait, within a bound, until a condition holds."""

    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - the condition is another process's
                await asyncio.sleep(0.01)

    return wait


@pytest.fixture
def plan_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlanFor:
    """A plan on a machine of 64 GiB without a GPU; fields of both settings groups by name."""
    monkeypatch.setattr("shutil.which", lambda _program: None)
    monkeypatch.setattr(planning, "_memory_gb", lambda: 64.0)
    monkeypatch.setattr(planning, "_shm_free_gb", lambda: 32.0)
    monkeypatch.setattr(ports, "_LOCKS", tmp_path)
    monkeypatch.setattr(planning, "_free_gb", lambda: 64.0)

    def build(
        log: Callable[[str], None] = lambda _: None, *, engines: int = 1, **fields: object
    ) -> StackPlan:
        local_names = settings.LocalEngine.model_fields
        local = {name: value for name, value in fields.items() if name in local_names}
        storage = {name: value for name, value in fields.items() if name not in local_names}
        return plan_from_settings(
            settings.Storage.model_validate({"storage_path": tmp_path / "storage", **storage}),
            settings.LocalEngine.model_validate({"home": tmp_path / "home", **local}),
            withheld=frozenset(),
            engines=engines,
            log=log,
        )

    return build


@pytest.fixture
def python() -> str:
    return sys.executable
