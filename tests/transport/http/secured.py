"""A whole gateway that asks for credentials, on a real socket, in front of an engine that is not there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.sql.api_keys import SqlApiKeys
from cwm.app import create_app
from cwm.cli.demo.gateway import RunningGateway
from cwm.domain.access import granted
from cwm.domain.api_key import ApiKey
from cwm.domain.upstream import UpstreamSpec
from cwm.services.access.machine_keys import MachineKeys
from cwm.settings import Auth, Database, Engine, Isolation, Settings
from tests.transport.mcp.gateway import nobody_listens, serving

DAY = timedelta(days=1)
API_KEYS = Auth(api_keys=True)


@asynccontextmanager
async def secured(
    folder: Path, auth: Auth = API_KEYS, *, port: int = 0, upstreams: Sequence[UpstreamSpec] = ()
) -> AsyncIterator[RunningGateway]:
    with nobody_listens() as url:
        settings = Settings(
            auth=auth,
            database=Database(db_path=folder / "cwm.db"),
            engine=Engine(vllm_url=url, lmcache_url=url, coordinator_url=url),
            isolation=Isolation(secret="a test's secret", tenant="acme"),
            upstreams=tuple(upstreams),
        )
        app = create_app(settings)
        async with serving(app, app.state.end_streams, port=port) as served_at:
            running = RunningGateway(served_at, app.state.parts)
            async with http(running) as client:
                # It listens before it has started, and only then the database is there.
                await client.get("/healthz")
            yield running


def machine_keys(running: RunningGateway) -> MachineKeys:
    return MachineKeys(SqlApiKeys(running.parts.base.database), running.parts.base.audit, SystemClock())


async def a_key(running: RunningGateway, *scopes: str, tenant: str = "acme", name: str = "ci") -> str:
    return (await made(running, *scopes, tenant=tenant, name=name))[1]


async def made(
    running: RunningGateway,
    *scopes: str,
    tenant: str = "acme",
    name: str = "ci",
    lasting: timedelta | None = DAY,
) -> tuple[ApiKey, str]:
    return await machine_keys(running).create(tenant, name, granted(scopes), lasting)


@asynccontextmanager
async def http(running: RunningGateway, credential: str | None = None) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {} if credential is None else {"authorization": f"Bearer {credential}"}
    async with httpx2.AsyncClient(
        base_url=running.url, headers=headers, timeout=60, trust_env=False
    ) as client:
        yield client


def initialize() -> dict[str, Any]:
    """The first request of a client of the handshake era."""
    return {
        "json": {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "a test", "version": "1"},
            },
        },
        "headers": {"accept": "application/json, text/event-stream"},
    }
