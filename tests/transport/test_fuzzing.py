"""Requests that nobody means well with: none is answered 5xx, none hangs, and a good one is answered afterwards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cwm.app import assemble
from cwm.settings import Database, Engine, Isolation, Retention, Settings
from cwm.wiring.parts import build_parts
from tests.transport.hostile import DEEP, bodies, headers, values
from tests.transport.mcp.gateway import nobody_listens, serving
from tests.transport.mcp.wire import LIST, MODERN_META, wired

pytestmark = pytest.mark.slow

PATIENCE_SECONDS: Final = 20
EXAMPLES: Final = 200
METHODS: Final = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECTX", "get"]
PATHS: Final = [
    "/healthz",
    "/readyz",
    "/metrics",
    "/reconcile",
    "/v1/models",
    "/v1/models/a%2Fb%00",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/conversations",
    "/v1/conversations/a%2Fb%00",
    "/v1/conversations/a/items",
    "/v1/nothing",
    "/mcp",
    "/mcp/",
    "//mcp",
    "/",
    "/console",
    "/console/conversations",
    "/console/turns/a%2Fb",
    "/console/windows/%3Cb%3E",
    "/console/nothing",
    "/.well-known/oauth-protected-resource",
    "/%2e%2e/etc/passwd",
    "/%ff",
    "/" + "a" * 5_000,
]
# What answers that a dependency is down: there is no engine behind this gateway.
MAY_BE_DOWN: Final = {
    "/readyz",
    "/v1/models",
    "/v1/models/a%2Fb%00",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
}


@dataclass(frozen=True, slots=True)
class Target:
    http: httpx2.AsyncClient
    session_id: str

    async def send(self, method: str, path: str, body: bytes, sent: dict[str, str]) -> tuple[int, bytes]:
        """Status and content; of a stream that stays open what came up to its first message."""
        raw = [(name.encode(), value.encode("latin-1")) for name, value in sent.items()]
        async with asyncio.timeout(PATIENCE_SECONDS):
            async with self.http.stream(method, path, content=body, headers=raw) as answer:
                if method == "GET" and answer.headers.get("content-type", "").startswith("text/event-stream"):
                    return answer.status_code, b""
                return answer.status_code, await answer.aread()

    async def good_call(self) -> None:
        sent = {"accept": "application/json, text/event-stream", "mcp-session-id": self.session_id}
        async with asyncio.timeout(PATIENCE_SECONDS):
            answer = await self.http.post("/mcp", json=LIST, headers=sent)
        assert answer.status_code == 200
        assert "window_freeze" in answer.text


@pytest.fixture(scope="module")
async def target(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Target]:
    folder = tmp_path_factory.mktemp("fuzzing")
    with nobody_listens() as away:
        chosen = Settings(
            database=Database(db_path=folder / "cwm.db"),
            engine=Engine(vllm_url=away, lmcache_url=away, coordinator_url=away),
            isolation=Isolation(secret="a test's secret"),
            retention=Retention(reconcile_seconds=86_400),
        )
        app = assemble(chosen, build_parts(chosen))
        async with serving(app, app.state.end_streams) as url, wired(url) as wire:
            yield Target(wire.http, await wire.session())


fuzzing = settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


@fuzzing
@given(bodies(modern=False), headers)
async def test_messages_of_the_handshake_era(target: Target, body: bytes, more: dict[str, str]) -> None:
    sent = {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "mcp-session-id": target.session_id,
    }
    status, content = await target.send("POST", "/mcp", body, {**sent, **more})
    _sound(status, content)
    await target.good_call()


@fuzzing
@given(bodies(modern=True), headers, st.sampled_from(["tools/call", "tools/list", "resources/read", "ping"]))
async def test_messages_of_the_era_without_sessions(
    target: Target, body: bytes, more: dict[str, str], method: str
) -> None:
    sent = {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": _method_of(body) or method,
        "mcp-name": _name_of(body) or "window_list",
    }
    status, content = await target.send("POST", "/mcp", body, {**sent, **more})
    _sound(status, content)
    await target.good_call()


def _sound(status: int, content: bytes) -> None:
    assert status < 500, content
    # An error of ours would be hidden in a 200.
    assert b"CWM-9001" not in content, content
    assert b"Traceback" not in content


@fuzzing
@given(
    st.sampled_from(METHODS),
    st.sampled_from(PATHS),
    st.one_of(
        values.map(lambda value: json.dumps(value).encode()), bodies(modern=False), st.binary(max_size=200)
    ),
    headers,
    st.sampled_from(["", "?a=b", "?%00=%ff", "?" + "a=1&" * 500]),
)
async def test_any_method_on_any_path(
    target: Target, method: str, path: str, body: bytes, more: dict[str, str], query: str
) -> None:
    status, content = await target.send(method, path + query, body, more)
    assert status < 500 or (path in MAY_BE_DOWN and status == 503), (status, content)
    assert b"CWM-9001" not in content, content
    assert b"Traceback" not in content
    await target.good_call()


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/reconcile", "/mcp"]
)
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
async def test_json_nested_without_end(target: Target, path: str, opening: bytes) -> None:
    for sent in ({}, {"cwm-session-id": "s"}, {"mcp-session-id": target.session_id}):
        head = {"accept": "application/json, text/event-stream", "content-type": "application/json", **sent}
        for depth in (DEEP, 50 * DEEP):
            status, content = await target.send("POST", path, opening * depth, head)
            assert 400 <= status < 500, content
    await target.good_call()


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("depth", [60, 70, 200, 400, 800, DEEP])
async def test_an_argument_nested_too_deep_is_refused_and_any_other_kept(
    target: Target, era: str, depth: int
) -> None:
    meta = json.dumps(MODERN_META)
    body = (
        '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "context_set", "_meta": '
        f'{meta}, "arguments": {{"key": "deep", "scope": "tenant", "value": {"[" * depth}{"]" * depth}}}}}}}'
    )
    sent = {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "mcp-protocol-version": era,
        "mcp-method": "tools/call",
        "mcp-name": "context_set",
        "mcp-session-id": target.session_id,
    }
    status, content = await target.send("POST", "/mcp", body.encode(), sent)
    _sound(status, content)
    assert (b'"isError":false' in content) == (depth < 64), content
    await target.good_call()


def _method_of(body: bytes) -> str | None:
    message = _json(body)
    method = message.get("method") if isinstance(message, dict) else None
    return method if isinstance(method, str) and method.isascii() and method.isprintable() else None


def _name_of(body: bytes) -> str | None:
    message = _json(body)
    params = message.get("params") if isinstance(message, dict) else None
    name = (params.get("name") or params.get("uri")) if isinstance(params, dict) else None
    return (
        name if isinstance(name, str) and name.isascii() and name.isprintable() and len(name) < 200 else None
    )


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
