"""The gateway under attack: its process, its keys, what its two tenants have, and its cost so far."""

from __future__ import annotations

import itertools
import secrets
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
from fastapi import FastAPI

from cwm.adapters.sql import schema
from cwm.app import assemble
from cwm.domain.access import EVERY
from cwm.settings import ABSENT, Database, Engine, Settings
from cwm.wiring.parts import Parts, build_parts
from cwm_bench.harness.gateway import gateway
from cwm_bench.harness.servers import answering, cpu_ms, free_port, running
from cwm_bench.hostile.engine import MODEL

ATTACKER: Final = "attacker"
VICTIM: Final = "victim"
_KEYS: Final = {ATTACKER: 250, VICTIM: 12}
_TIMEOUT_SECONDS: Final = 120.0
_CHAT: Final = "/v1/chat/completions"
_ITEMS: Final = 10
# From the most to the fewest: the largest that the gateway takes is stored.
_PARTS: Final = (200_000, 100_000, 50_000, 20_000, 10_000, 5_000, 2_000, 1_000, 100)


@dataclass(frozen=True, slots=True)
class Owner:
    """A principal of the attacker; ``names``: the things that it has, by the names that routes and tools have for them."""

    headers: Mapping[str, str]
    names: Mapping[str, str]


@dataclass(slots=True)
class Target:
    url: str
    pid: int
    app: FastAPI
    http: httpx2.AsyncClient
    database: Path
    keys: Mapping[str, Iterator[str]]

    def headers(self, tenant: str) -> dict[str, str]:
        """Of the next of the tenant's principals."""
        return {"authorization": f"Bearer {next(self.keys[tenant])}"}

    def cpu_ms(self) -> float:
        return cpu_ms(self.pid)

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5", encoding="ascii")

    def peak_mb(self) -> float:
        """The most resident memory since the peak was forgotten."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return round(int(line.split()[1]) / 1024, 1)

    def recorded_turns(self, tenant: str) -> int:
        """Turns of the tenant in the registry."""
        with sqlite3.connect(f"file:{self.database}?mode=ro", uri=True) as connection:
            (count,) = connection.execute("select count(*) from turns where tenant = ?", (tenant,)).fetchone()
        return int(count)


@asynccontextmanager
async def under_attack(folder: Path) -> AsyncIterator[Target]:
    """A gateway with its defaults and API keys, on SQLite, in front of the engine that answers at once."""
    port, log, database = free_port(), folder / "engine.log", folder / "cwm.db"
    engine = f"http://127.0.0.1:{port}"
    settings = Settings(
        database=Database(db_path=database),
        engine=Engine(vllm_url=engine, lmcache_url=ABSENT, coordinator_url=ABSENT),
    )
    await schema.upgrade(settings.database.url())
    parts = build_parts(settings)
    async with parts.close():
        app = assemble(settings, parts)
        keys = {tenant: itertools.cycle(await _keys(parts, tenant)) for tenant in _KEYS}
    variables = {
        "CWM_VLLM_URL": engine,
        "CWM_LMCACHE_URL": ABSENT,
        "CWM_COORDINATOR_URL": ABSENT,
        "CWM_DB_PATH": str(database),
        "CWM_SECRET_FILE": str(folder / "secret"),
        "CWM_API_KEYS": "true",
        "CWM_LOG_LEVEL": "ERROR",
    }
    async with (
        running(["-m", "cwm_bench.hostile.engine", str(port)], {}, log) as process,
        aclosing(httpx2.AsyncClient(trust_env=False, timeout=_TIMEOUT_SECONDS)) as http,
    ):
        await answering(f"{engine}/version", process, log)
        async with gateway(variables, folder / "gateway.log") as endpoint:
            yield Target(endpoint.url, endpoint.pid, app, http, database, keys)


async def _keys(parts: Parts, tenant: str) -> list[str]:
    """Keys of as many principals, each of which may do everything in its tenant."""
    machine_keys = parts.services.keys.keys
    return [
        (await machine_keys.create(tenant, f"{tenant}-{number}", EVERY, None))[1]
        for number in range(_KEYS[tenant])
    ]


async def owner(target: Target) -> Owner:
    """A new principal that stores the largest of each kind that the gateway takes, in JSON of as many nodes as bytes can spell."""
    headers = target.headers(ATTACKER)
    session_id = f"hostile-{secrets.token_hex(4)}"
    hi = {"role": "user", "content": "hi"}

    async def largest(path: str, body: Callable[[list[Any]], Any], kind: str) -> httpx2.Response:
        """The answer to the largest body that is taken, or to the smallest."""
        for count in _PARTS:
            content = body([{"type": kind, "text": ""}] * count)
            sent = {**headers, "cwm-session-id": session_id} if path == _CHAT else headers
            answer = await target.http.post(f"{target.url}{path}", json=content, headers=sent)
            if answer.is_success:
                break
        return answer

    turn = await largest(
        _CHAT,
        lambda parts: {"model": MODEL, "messages": [{"role": "user", "content": parts}, hi], "max_tokens": 1},
        "text",
    )
    response = await largest(
        "/v1/responses",
        lambda parts: {"model": MODEL, "input": [{"role": "user", "content": parts}, hi]},
        "input_text",
    )
    created = await target.http.post(f"{target.url}/v1/conversations", json={}, headers=headers)
    conversation = created.json().get("id", "x")
    for _ in range(_ITEMS):
        items = await largest(
            f"/v1/conversations/{conversation}/items",
            lambda parts: {"items": [{"role": "user", "content": parts}]},
            "input_text",
        )
    names = {
        "session_id": session_id,
        "turn": turn.headers.get("cwm-turn", "x"),
        "response": response.json().get("id", "x"),
        "conversation": conversation,
        "item": (items.json().get("data") or [{}])[0].get("id", "x"),
        "model": MODEL,
        "engine": "default",
        "scope": "tenant",
    }
    return Owner(headers, names)
