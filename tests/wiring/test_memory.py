"""What a gateway loads before anybody uses it, and what settling its memory collects; each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client

from tests.cli.command import environment, serving

pytestmark = pytest.mark.slow

_SETTLING = """
import gc, json, sys, weakref
from cwm.wiring.memory import settle_memory

class Cycle:
    def __init__(self):
        self.itself = self

{before}
garbage = weakref.ref(Cycle())
runs = []
gc.callbacks.append(lambda phase, info: runs.append(phase))
settle_memory()
print(json.dumps([len(runs), garbage() is None, gc.isenabled(), gc.get_freeze_count()]))
"""


def test_a_start_without_the_collector_is_frozen_as_it_is_and_has_it_from_then_on() -> None:
    runs, _collected, enabled, frozen = _settled("gc.disable()")
    assert runs == 0
    assert enabled
    assert frozen > 10_000


def test_what_an_earlier_life_of_the_process_left_behind_is_collected_and_not_kept_for_ever() -> None:
    runs, collected, enabled, frozen = _settled("gc.enable()")
    assert runs > 0
    assert collected
    assert enabled
    assert frozen > 10_000


_STARTING = """
import asyncio, json, sys
import cwm.cli.root
from cwm import settings
from cwm.app import create_app

app = create_app(settings.load())

async def start():
    async with app.router.lifespan_context(app):
        with open("/proc/self/statm") as pages:
            print(json.dumps([int(pages.read().split()[1]) * 4 // 1024, sorted(sys.modules)]))

asyncio.run(start())
"""
LOADED_ON_USE = {
    "alembic",
    "asyncpg",
    "jmespath",
    "limits",
    "opentelemetry.exporter",
    "opentelemetry.sdk",
    "re2",
    "redis",
    "splintr",
    "sqlalchemy.ext.asyncio",
    "sqlalchemy.orm",
}


def test_a_gateway_on_sqlite_that_nobody_uses_has_loaded_only_what_it_needs(tmp_path: Path) -> None:
    variables = environment(tmp_path, {})
    # The first start makes the database, for which it loads Alembic.
    _run(_STARTING, variables)
    megabytes, modules = _run(_STARTING, variables)
    assert not LOADED_ON_USE & set(modules)
    assert megabytes < 150, "decision 0043"


@pytest.mark.slow
async def test_a_gateway_in_light_use_stays_under_200_mb(tmp_path: Path) -> None:
    with serving(tmp_path) as (url, process):
        async with Client(f"{url}/mcp") as client:
            for tool in await client.list_tools():
                if tool.annotations is not None and tool.annotations.read_only_hint:
                    await client.call_tool(tool.name, {}, raise_on_error=False)
            for _ in range(200):
                await client.call_tool("window_list", {})
                await client.call_tool("context_list", {})
        assert _resident_mb(process.pid) < 200, "decision 0043"


def _resident_mb(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4 // 1024


def _settled(before: str) -> Any:
    return _run(_SETTLING.format(before=before))


def _run(program: str, variables: Mapping[str, str] | None = None) -> Any:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    return json.loads(done.stdout)
