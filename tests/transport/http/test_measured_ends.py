"""How a request can end, as the middleware tells it; applications that misbehave stand behind it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.transport.http.measured import Measured

SCOPE = {"type": "http", "method": "POST", "path": "/v1/completions"}


async def fails(scope: Scope, receive: Receive, send: Send) -> None:
    raise KeyError


async def fails_mid_answer(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise KeyError


async def says_nothing(scope: Scope, receive: Receive, send: Send) -> None:
    return


async def refuses(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b"no"})


async def never_answers(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.get_running_loop().create_future()


async def asked(app: ASGIApp, scope: dict[str, Any] = SCOPE) -> PrometheusMeter:
    meter = PrometheusMeter()

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        return

    asking = asyncio.create_task(Measured(app, meter, {"/v1/completions"})(scope, receive, send))
    await asyncio.sleep(0)
    if app is never_answers:
        asking.cancel()
    await asyncio.wait({asking})
    if not asking.cancelled():
        asking.exception()
    return meter


@pytest.mark.parametrize(
    ("app", "status"),
    [
        (fails, "5xx"),
        (fails_mid_answer, "2xx"),
        (says_nothing, "left"),
        (refuses, "4xx"),
        (never_answers, "left"),
    ],
)
async def test_a_request_ends_once_however_it_ends(app: ASGIApp, status: str) -> None:
    samples = (await asked(app)).samples()
    ended = [(dict(s.labels), s.value) for s in samples if s.name == "cwm_http_requests_total"]
    assert ended == [({"face": "openai", "route": "POST /v1/completions", "status": status}, 1)]
    assert [s.value for s in samples if s.name == "cwm_http_requests_in_flight"] == [0]
    assert [s.value for s in samples if s.name == "cwm_http_request_duration_seconds_count"] == [1]
    first_bytes = [s.value for s in samples if s.name == "cwm_http_first_byte_seconds_count"]
    assert first_bytes == ([1] if app is refuses else [])


async def test_how_long_somebody_looks_is_not_timed() -> None:
    samples = (await asked(refuses, {"type": "http", "method": "GET", "path": "/console/events"})).samples()
    assert [s.value for s in samples if s.name == "cwm_http_requests_total"] == [1]
    assert not [s for s in samples if s.name == "cwm_http_request_duration_seconds_count"]


async def test_what_is_no_request_is_passed_on() -> None:
    meter = await asked(says_nothing, {"type": "lifespan"})
    assert not [s for s in meter.samples() if s.name.startswith("cwm_http_")]
