"""Every route counts a request before it reads anything of it, and what is read is bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.routing import Route

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.sql.api_keys import SqlApiKeys
from cwm.app import create_app
from cwm.domain.access import granted
from cwm.domain.principal import Principal
from cwm.services.access.machine_keys import MachineKeys
from cwm.settings import Auth, Database, Engine, Http, Isolation, Limits, Settings
from cwm.transport.llm.endpoint import Endpoint
from tests.eventually import eventually
from tests.transport.http.secured import DAY
from tests.transport.mcp.gateway import nobody_listens, serving

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
UNCOUNTED = {
    "/": "the same for everybody, without credentials",
    "/healthz": "asked by machines, without credentials",
    "/readyz": "asked by machines; callers at the same time share one look",
    "/metrics": "asked by machines",
    "/openapi.json": "the same for everybody, without credentials",
    "/v1/{rest:path}": "nothing is there",
    "/console/{rest:path}": "nothing is there",
    "/console/static/{file}": "files of the package",
    "/console/sign-in": "nobody has signed in yet",
    "/console/sign-in/start": "nobody has signed in yet",
    "/console/sign-in/return": "nobody has signed in yet",
}
WITHOUT_A_PLACE = {("GET", "/console/events"), ("GET", "/mcp"), ("DELETE", "/mcp")}
"""They last as long as somebody listens, or end that."""


@dataclass(frozen=True, slots=True)
class Served:
    app: FastAPI
    port: int

    @property
    def limits(self) -> Any:
        return self.app.state.parts.base.limits

    async def key(self, name: str, *scopes: str) -> tuple[str, Principal]:
        base = self.app.state.parts.base
        keys = MachineKeys(SqlApiKeys(base.database), base.audit, SystemClock())
        _, key = await keys.create("acme", name, granted(scopes or ("admin",)), DAY)
        return key, await base.access.identity.authenticate({"authorization": f"Bearer {key}"})

    async def begun(
        self, method: str, path: str, key: str | None, length: int = 0, body: bytes = b"", *headers: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A request whose body may not be there yet. A length below zero: it comes in pieces, and ``body`` is the first."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        size = f"content-length: {length}" if length >= 0 else "transfer-encoding: chunked"
        whose = [] if key is None else [f"authorization: Bearer {key}"]
        head = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", "connection: close", size, *whose, *headers]
        content = body if length >= 0 else b"%x\r\n%b\r\n" % (len(body), body)
        writer.write("\r\n".join([*head, "", ""]).encode() + content)
        await writer.drain()
        return reader, writer

    async def said(self, *request: Any) -> tuple[int, str]:
        """The status of the answer and the answer, which has to come although the body may not be there."""
        reader, writer = await self.begun(*request)
        async with asyncio.timeout(30):
            answer = await reader.read()
        writer.close()
        return int(answer.split()[1]), answer.decode()


@asynccontextmanager
async def served(folder: Path, max_body_bytes: int = 200_000, **limits: Any) -> AsyncIterator[Served]:
    with nobody_listens() as url:
        settings = Settings(
            auth=Auth(api_keys=True),
            http=Http(max_body_bytes=max_body_bytes),
            database=Database(db_path=folder / "cwm.db"),
            engine=Engine(vllm_url=url, lmcache_url=url, coordinator_url=url),
            isolation=Isolation(secret="a test's secret", tenant="acme"),
            limits=Limits(**limits),
        )
        app = create_app(settings)
        async with serving(app, app.state.end_streams) as at:
            gateway = Served(app, int(at.rpartition(":")[2]))
            # It listens before it has started, and only then the database is there.
            assert (await gateway.said("GET", "/healthz", None))[0] == 200
            yield gateway


def routes(app: FastAPI) -> Iterator[tuple[str, str]]:
    """The methods and paths of all routes, with an id in place of each parameter."""
    for route in app.router.routes:
        if isinstance(route, Route):
            endpoint = route.endpoint
            own = endpoint.methods.split(", ") if isinstance(endpoint, Endpoint) else ["GET", "POST"]
            for method in sorted(route.methods or own):
                yield method, route.path
    yield from (("POST", "/mcp"), ("GET", "/mcp"), ("DELETE", "/mcp"))


def filled(path: str) -> str:
    while "{" in path:
        before, _, rest = path.partition("{")
        path = before + "some-id" + rest.partition("}")[2]
    return path


async def test_every_route_is_refused_over_a_limit_before_anything_of_the_request_is_read(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, concurrent_principal=1, rate_limit_lists="1/minute") as gateway:
        key, ann = await gateway.key("ann")
        release = await gateway.limits.admit(ann, None)
        await gateway.limits.count_list(ann)
        seen = set()
        for method, path in routes(gateway.app):
            seen.add(path)
            length = 70_000 if method == "POST" and path not in UNCOUNTED else 0
            status, answer = await gateway.said(method, filled(path), key, length)
            if path in UNCOUNTED:
                assert status != 429, (method, path)
                continue
            assert status == 429, (method, path, answer)
            assert "retry-after: " in answer, (method, path)
            code = "CWM-7001" if (method, path) in WITHOUT_A_PLACE else "CWM-7002"
            assert method == "HEAD" or code in answer, (method, path, answer)
        assert seen >= UNCOUNTED.keys()
        release()
        await gateway.limits.settle()
        (place,) = [each for each in gateway.limits.rules.places(ann) if each.level.value == "principal"]
        assert await gateway.limits.running.count(place) == 0
        assert gateway.limits.bodies.total == 0


@pytest.mark.parametrize(
    "path", [CHAT, "/v1/messages/count_tokens", "/v1/embeddings", "/v1/conversations", "/reconcile"]
)
async def test_the_body_of_a_request_over_its_rate_is_not_waited_for(tmp_path: Path, path: str) -> None:
    async with served(tmp_path, rate_limit_principal="1/minute") as gateway:
        key, ann = await gateway.key("ann")
        (await gateway.limits.admit(ann, None))()
        status, answer = await gateway.said("POST", path, key, 70_000)
        assert (status, "CWM-7001" in answer) == (429, True)


@pytest.mark.parametrize("path", [CHAT, "/mcp"])
async def test_bodies_that_do_not_end_take_the_places_of_who_sends_them(tmp_path: Path, path: str) -> None:
    async with served(tmp_path, concurrent_principal=2) as gateway:
        key, _ = await gateway.key("ann")
        other, _ = await gateway.key("bob")
        unfinished = [await gateway.begun("POST", path, key, 70_000, b"{") for _ in range(2)]

        await eventually(lambda: gateway.limits.bodies.total == 2)
        assert (await gateway.said("GET", "/v1/models", key))[0] == 429
        assert (await gateway.said("GET", "/v1/models", other))[0] != 429
        for _, writer in unfinished:
            writer.close()
        await eventually(lambda: gateway.limits.bodies.total == 0)
        await gateway.limits.settle()
        assert (await gateway.said("GET", "/v1/models", key))[0] != 429


async def test_bodies_that_arrive_have_a_bound_of_each_caller_and_of_all(tmp_path: Path) -> None:
    async with served(tmp_path, body_memory_bytes=500_000, body_memory_principal_bytes=200_000) as gateway:
        keys = [(await gateway.key(name))[0] for name in ("ann", "bob", "eve")]
        bodies = gateway.limits.bodies
        unfinished = [await gateway.begun("POST", CHAT, key, 199_000, b" " * 190_000) for key in keys[:2]]
        await eventually(lambda: bodies.total == 380_000)
        for path in (CHAT, "/mcp", "/console/keys/new"):
            status, answer = await gateway.said("POST", path, keys[0], 20_000)
            assert status == 429
            assert "retry-after: 1" in answer
            assert "200000 bytes of request bodies at once for each principal" in answer
        status, answer = await gateway.said("POST", CHAT, keys[0], -1, b" " * 20_000)
        assert (status, "CWM-7002" in answer) == (429, True)
        status, answer = await gateway.said("POST", CHAT, keys[2], 150_000)
        assert (status, "500000 bytes of request bodies at once on this gateway" in answer) == (429, True)
        assert (await gateway.said("POST", CHAT, keys[2], 2, b"{]"))[0] == 400
        for _, writer in unfinished:
            writer.close()
        await eventually(lambda: bodies.total == 0)


async def test_who_shows_no_credentials_sends_little(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway:
        status, answer = await gateway.said("POST", "/console/sign-in", None, 64 * 1024 + 1)
        assert (status, "larger than 65536 bytes" in answer) == (413, True)
        form = ("sec-fetch-site: same-origin", "content-type: application/x-www-form-urlencoded")
        body = b"x" * (64 * 1024 + 1)
        assert (await gateway.said("POST", "/console/sign-in", None, -1, body, *form))[0] == 413


@pytest.mark.parametrize(
    "path",
    [
        *(CHAT, "/v1/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"),
        *("/v1/embeddings", "/v1/conversations", "/mcp"),
    ],
)
async def test_json_of_too_many_values_is_refused_before_it_is_parsed(tmp_path: Path, path: str) -> None:
    async with served(tmp_path, max_body_bytes=8_000_000) as gateway:
        key, ann = await gateway.key("ann")
        parts = b'{"messages":[' + b",".join([b"[]"] * 1_000_000) + b"] this is no JSON"
        mcp = ("mcp-protocol-version: 2026-07-28", "accept: application/json, text/event-stream")
        status, answer = await gateway.said("POST", path, key, len(parts), parts, *mcp)
        assert (status, "CWM-1003" in answer) == (400, True)
        most = 250_000 if path == "/mcp" else 1_000_000
        assert f"more than {most} values" in answer
        await gateway.limits.settle()
        assert [await gateway.limits.running.count(each) for each in gateway.limits.rules.places(ann)] == [
            0,
            0,
        ]
        await eventually(lambda: gateway.limits.bodies.total == 0)


async def test_a_large_message_of_mcp_is_called_with_the_place_that_it_took(tmp_path: Path) -> None:
    async with served(tmp_path, concurrent_principal=1) as gateway:
        key, ann = await gateway.key("ann")
        message = json.dumps(
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {
                    "name": "context_set",
                    "arguments": {"key": "notes", "value": "x" * 70_000},
                    "_meta": {
                        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                        "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
                        "io.modelcontextprotocol/clientCapabilities": {},
                    },
                },
            }
        ).encode()
        headers = (
            "mcp-protocol-version: 2026-07-28",
            "mcp-method: tools/call",
            "mcp-name: context_set",
            "accept: application/json, text/event-stream",
            "content-type: application/json",
        )
        status, answer = await gateway.said("POST", "/mcp", key, len(message), message, *headers)
        assert (status, "CWM-" in answer) == (200, False), answer
        assert '"isError":false' in answer
        await gateway.limits.settle()
        assert [await gateway.limits.running.count(each) for each in gateway.limits.rules.places(ann)] == [
            0,
            0,
        ]
