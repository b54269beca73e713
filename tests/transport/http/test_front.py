"""What stands before every route: whose requests get in, and what each answer carries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from fastapi import FastAPI

from cwm.app import create_app
from cwm.settings import Database, Engine, Http, Isolation, Security, Settings
from tests.transport.mcp.gateway import nobody_listens
from tests.transport.mcp.wire import initialize

HOST: Final = "cwm.example.com"
PAGE: Final = "https://app.example.com"
EVERYWHERE: Final = [
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
    ("POST", "/reconcile"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/models"),
    ("POST", "/mcp"),
    ("GET", "/nowhere"),
]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> FastAPI:
    folder = tmp_path_factory.mktemp("front")
    path = folder / "cwm.db"
    path.write_bytes(sqlite_template.read_bytes())
    with nobody_listens() as url:
        return create_app(
            Settings(
                http=Http(host="127.0.0.1"),
                security=Security(allowed_hosts=f"{HOST},*.inside.example", allowed_origins=PAGE),
                database=Database(db_path=path),
                engine=Engine(vllm_url=url, lmcache_url=url, coordinator_url=url),
                isolation=Isolation(secret="a test's secret", tenant="acme"),
            )
        )


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    """The application as it is assembled; what is asked here needs no lifespan."""
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
        yield client


async def ask(http: httpx2.AsyncClient, method: str, path: str, **headers: str) -> httpx2.Response:
    return await http.request(method, path, headers=headers)


@pytest.mark.parametrize(("method", "path"), EVERYWHERE)
async def test_no_route_answers_under_a_name_that_is_not_the_gateways(
    http: httpx2.AsyncClient, method: str, path: str
) -> None:
    answer = await ask(http, method, path, host="evil.example")
    assert answer.status_code == 421
    assert answer.json()["error"]["code"] == "CWM-9002"


@pytest.mark.parametrize(("method", "path"), EVERYWHERE)
@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://app.example.com", f"{PAGE}.evil.example"]
)
async def test_no_route_answers_pages_of_another_origin(
    http: httpx2.AsyncClient, method: str, path: str, origin: str
) -> None:
    answer = await ask(http, method, path, origin=origin)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "host",
    [HOST, HOST.upper(), f"{HOST}:8700", "127.0.0.1:1", "localhost", "[::1]:8700", "a.inside.example"],
)
async def test_its_own_names_are_known(http: httpx2.AsyncClient, host: str) -> None:
    assert (await ask(http, "GET", "/healthz", host=host)).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        f"{HOST}.evil.example",
        f"evil{HOST}",
        "inside.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "[::1",
        "169.254.169.254",
        f"{HOST}@evil.example",
        "",
    ],
)
async def test_what_only_looks_like_one_is_not(http: httpx2.AsyncClient, host: str) -> None:
    assert (await ask(http, "GET", "/healthz", host=host)).status_code == 421


async def test_two_hosts_in_one_request_are_none(http: httpx2.AsyncClient) -> None:
    answer = await http.get("/healthz", headers=[("host", HOST), ("host", HOST)])
    assert answer.status_code == 421


async def test_pages_of_its_own_and_those_that_are_named_get_in(http: httpx2.AsyncClient) -> None:
    for origin in (PAGE, f"http://{HOST}", f"https://{HOST}"):
        assert (await ask(http, "GET", "/healthz", origin=origin)).status_code == 200


async def test_a_named_page_may_ask_and_read_what_mcp_clients_in_browsers_need(
    http: httpx2.AsyncClient,
) -> None:
    wanted = (
        "authorization,content-type,mcp-protocol-version,mcp-session-id,mcp-method,mcp-name,last-event-id"
    )
    preflight = {
        "origin": PAGE,
        "access-control-request-method": "POST",
        "access-control-request-headers": wanted,
    }
    for path in ("/mcp", "/v1/chat/completions"):
        allowed = await http.options(path, headers=preflight)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == PAGE
        assert set(wanted.split(",")) <= set(
            allowed.headers["access-control-allow-headers"].lower().split(", ")
        )
        assert "access-control-allow-credentials" not in allowed.headers
    answer = await ask(http, "GET", "/healthz", origin=PAGE)
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "mcp-session-id" in answer.headers["access-control-expose-headers"]
    assert "origin" in answer.headers["vary"].lower()


async def test_a_preflight_of_another_page_is_refused(http: httpx2.AsyncClient) -> None:
    preflight = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    answer = await http.options("/mcp", headers=preflight)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(("method", "path"), EVERYWHERE)
@pytest.mark.parametrize("host", [HOST, "evil.example"])
async def test_no_answer_can_be_sniffed_framed_or_kept(
    http: httpx2.AsyncClient, method: str, path: str, host: str
) -> None:
    headers = (await ask(http, method, path, host=host)).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers


async def test_who_was_kept_out_is_written_down_once_and_not_for_every_try(
    app: FastAPI, http: httpx2.AsyncClient
) -> None:
    for _ in range(20):
        await ask(http, "GET", "/healthz", host="evil.example")
        await ask(http, "GET", "/healthz", origin="https://evil.example")
    events = await app.state.parts.base.audit.events("acme", 100)
    refused = [event for event in events if event.event == "security.request_refused"]
    assert {event.outcome for event in refused} == {"CWM-9002"}
    assert sorted(event.details["header"] for event in refused) == ["host", "origin"]


def test_without_a_setting_no_foreign_page_and_no_foreign_name_gets_in() -> None:
    security: Any = Security()
    assert (security.allowed_hosts, security.allowed_origins) == ((), ())


async def test_a_client_that_is_no_browser_says_no_origin_and_gets_in(http: httpx2.AsyncClient) -> None:
    answer = await http.post("/v1/nothing", json=initialize())
    assert answer.status_code == 404


@pytest.mark.parametrize("path", ["/mcp/", "/healthz/"])
async def test_no_path_with_a_slash_at_its_end_is_redirected_to_another_scheme(
    http: httpx2.AsyncClient, path: str
) -> None:
    """Behind a proxy that terminates TLS, a redirect would lead to ``http://``, with the client's credentials."""
    answer = await ask(http, "POST", path, **{"x-forwarded-proto": "https"})
    assert "location" not in answer.headers
    if path == "/mcp/":
        plain = await ask(http, "POST", "/mcp")
        assert (answer.status_code, answer.content) == (plain.status_code, plain.content)
