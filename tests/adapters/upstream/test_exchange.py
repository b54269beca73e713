"""A caller's token for one of the upstream's, at a token endpoint that holds to RFC 8693."""

from __future__ import annotations

import asyncio
import base64
import gzip
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from cwm.adapters.upstream.exchange import TokenExchanger
from cwm.domain.errors import UpstreamRejectionError
from cwm.domain.upstream import Credentials, OfferKind, TokenExchange
from cwm.ports.upstream import UpstreamAwayError
from tests.adapters.upstream.bad_server import BadServer, bad_server
from tests.services.replicas_of import ANN, BOB, Shared, replica
from tests.transport.mcp.gateway import serving

pytestmark = pytest.mark.slow

SECRET = "the client's secret"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"


@dataclass(slots=True)
class TokenEndpoint:
    """Gives ``<subject token>-for-<audience>`` to the client that it knows, and nothing for anything else."""

    lasts: Any = 300
    asked: list[str] = field(default_factory=list)
    url: str = ""

    @property
    def exchange(self) -> TokenExchange:
        return TokenExchange(f"{self.url}/token", "cwm", SECRET, audience="notes", scope="read")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await (await self._answer(Request(scope, receive)))(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        basic = base64.b64encode(f"cwm:{SECRET}".encode()).decode()
        if request.method != "POST" or request.headers.get("authorization") != f"Basic {basic}":
            return JSONResponse({"error": "invalid_client"}, 401)
        if request.headers["content-type"] != "application/x-www-form-urlencoded":
            return JSONResponse({"error": "invalid_request"}, 400)
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        token = form.pop("subject_token", "")
        self.asked.append(token)
        if form != {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "subject_token_type": ACCESS_TOKEN,
            "requested_token_type": ACCESS_TOKEN,
            "audience": "notes",
            "scope": "read",
        }:
            return JSONResponse({"error": "invalid_request"}, 400)
        if token.startswith("large"):
            body = gzip.compress(b" " * 30_000_000, 1)
            return Response(body, media_type="application/json", headers={"content-encoding": "gzip"})
        if token.startswith("revoked"):
            return JSONResponse({"error": "invalid_grant"}, 400)
        issued = {
            "access_token": f"{token}-for-{form['audience']}",
            "issued_token_type": ACCESS_TOKEN,
            "token_type": "Bearer",
            "expires_in": self.lasts,
        }
        return JSONResponse(issued, headers={"cache-control": "no-store"})


@asynccontextmanager
async def exchanging(*, lasts: Any = 300) -> AsyncIterator[tuple[TokenEndpoint, BadServer]]:
    endpoint = TokenEndpoint(lasts)
    async with serving(endpoint) as endpoint.url, bad_server() as server:
        yield endpoint, server


async def test_each_caller_calls_with_a_token_exchanged_for_its_own() -> None:
    async with exchanging() as (endpoint, server):
        spec = server.spec(credentials=Credentials.EXCHANGE, exchange=endpoint.exchange)
        async with replica(Shared(), [spec]) as one:
            ann = await one.caller(None, ANN, "Bearer ann-1")
            refreshed = await one.caller(None, ANN, "Bearer ann-2")
            bob = await one.caller(None, BOB, "bearer bob-1")
            for caller in (ann, bob, refreshed, ann, bob):
                assert await one.call(caller, "bad_do") == "done"
        shown = [(h["mcp-session-id"], h["authorization"]) for m, h in server.asked if m == "tools/call"]
        tokens = ["ann-1", "bob-1", "ann-2", "ann-1", "bob-1"]
        assert [token for _, token in shown] == [f"Bearer {token}-for-notes" for token in tokens]
        assert len({session for session, token in shown if "ann" in token}) == 1
        assert len({session for session, _ in shown}) == 2
        assert sorted(set(endpoint.asked)) == ["ann-1", "ann-2", "bob-1"]
        assert len(endpoint.asked) == 3


async def test_a_token_that_is_about_to_run_out_is_asked_for_again() -> None:
    async with exchanging(lasts=20) as (endpoint, server):
        spec = server.spec(credentials=Credentials.EXCHANGE, exchange=endpoint.exchange)
        async with replica(Shared(), [spec]) as one:
            caller = await one.caller(None, ANN, "Bearer ann")
            await one.call(caller, "bad_do")
            asked = len(endpoint.asked)
            await one.call(caller, "bad_do")
            assert len(endpoint.asked) > asked


async def test_callers_who_come_at_once_with_one_token_are_answered_by_one_exchange() -> None:
    async with exchanging() as (endpoint, _), closing_exchanger() as exchanger:
        leaves, *stay = (
            asyncio.create_task(exchanger.exchange(endpoint.exchange, "Bearer ann")) for _ in range(8)
        )
        await asyncio.sleep(0)
        leaves.cancel()
        assert set(await asyncio.gather(*stay)) == {"Bearer ann-for-notes"}
        with pytest.raises(UpstreamAwayError):
            await exchanger.exchange(endpoint.exchange, "Bearer revoked")
        with pytest.raises(UpstreamAwayError):
            await exchanger.exchange(endpoint.exchange, "Bearer revoked")
    assert endpoint.asked == ["ann", "revoked", "revoked"]


@asynccontextmanager
async def closing_exchanger() -> AsyncIterator[TokenExchanger]:
    exchanger = TokenExchanger()
    try:
        yield exchanger
    finally:
        await exchanger.aclose()


@pytest.mark.parametrize("authorization", [None, "Basic YTpi", "Bearer ", "Bearer revoked-s3cr3t"])
async def test_without_a_token_to_exchange_the_upstream_is_absent_and_is_not_asked(
    authorization: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with exchanging() as (endpoint, server):
        spec = server.spec(credentials=Credentials.EXCHANGE, exchange=endpoint.exchange)
        async with replica(Shared(), [spec]) as one:
            caller = await one.caller(None, ANN, authorization)
            offering = await one.upstreams.offering(caller, OfferKind.TOOLS)
            assert offering.absent.keys() == {"bad"}
            with pytest.raises(UpstreamRejectionError) as raised:
                await one.call(caller, "bad_do")
        assert server.asked == []
        told = f"{caplog.text} {raised.value.as_dict()} {offering.absent} {endpoint.exchange!r} {spec!r}"
        assert "s3cr3t" not in told
        assert SECRET not in told


async def test_a_token_endpoint_that_sends_too_much_is_not_read_to_its_end() -> None:
    endpoint = TokenEndpoint()
    async with serving(endpoint) as endpoint.url, closing_exchanger() as exchanger:
        with pytest.raises(UpstreamAwayError, match="TooLargeError"):
            await exchanger.exchange(endpoint.exchange, "Bearer large")


@pytest.mark.parametrize("lasts", [10**300, -1, True, "300", None])
async def test_a_token_is_not_used_for_ever_whatever_its_endpoint_says(
    lasts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with exchanging(lasts=lasts) as (endpoint, _):
        exchanger = TokenExchanger()
        assert await exchanger.exchange(endpoint.exchange, "Bearer ann") == "Bearer ann-for-notes"
        in_a_day = SimpleNamespace(monotonic=lambda: time.monotonic() + 86_401)
        monkeypatch.setattr("cwm.adapters.upstream.exchange.time", in_a_day)
        await exchanger.exchange(endpoint.exchange, "Bearer ann")
        await exchanger.aclose()
    assert endpoint.asked == ["ann", "ann"]
