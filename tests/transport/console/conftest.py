from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cwm.app import assemble
from cwm.domain.budgets import Budgets
from cwm.settings import ABSENT, Auth, Database, Engine, Http, Isolation, Retention, Settings, Tracing
from cwm.transport.console.turns import conversations
from cwm.wiring.parts import build_parts
from tests.transport.console.reading import Console
from tests.transport.mcp.gateway import nobody_listens


@asynccontextmanager
async def a_console(
    folder: Path,
    template: Path,
    auth: Auth | None = None,
    kv_tier: Any = None,
    trace_url: str | None = None,
    budgets: Budgets | None = None,
    **http: Any,
) -> AsyncIterator[Console]:
    """A whole gateway, in front of an engine that is not there. ``kv_tier`` answers where windows are."""
    path = folder / "cwm.db"
    shutil.copyfile(template, path)
    with nobody_listens() as away:
        settings = Settings(
            auth=auth or Auth(),
            http=Http(**http),
            tracing=Tracing(trace_url=trace_url),
            budgets=budgets or Budgets(),
            database=Database(db_path=path),
            engine=Engine(vllm_url=away, lmcache_url=ABSENT, coordinator_url=ABSENT),
            isolation=Isolation(secret="a test's secret"),
            retention=Retention(reconcile_seconds=86_400, patrol_windows=0),
        )
        parts = build_parts(settings)
        if kv_tier is not None:
            browse = replace(parts.services.browse, kv_tier=kv_tier)
            parts = replace(parts, services=replace(parts.services, browse=browse))
        transport = httpx2.ASGITransport(assemble(settings, parts), raise_app_exceptions=False)
        async with (
            parts.close(),
            httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8700") as http_client,
        ):
            yield Console(http_client, parts)


@pytest.fixture(autouse=True)
def _patient_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search ends with what there is, however busy the machine."""
    monkeypatch.setattr(conversations, "_SEARCH_SECONDS", 600.0)


@pytest.fixture
async def console(tmp_path: Path, sqlite_template: Path) -> AsyncIterator[Console]:
    async with a_console(tmp_path, sqlite_template) as served:
        yield served
