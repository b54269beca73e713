"""Streams end with the credentials that opened them, on every gateway, and no others do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest

from cwm.cli.demo.gateway import RunningGateway
from tests.transport.http.secured import http, machine_keys, made, secured
from tests.transport.mcp.wire import EventStream, Wire

pytestmark = pytest.mark.slow

SCOPES = ("admin", "windows:*", "context:*")
_BOUND_SECONDS = 30


@asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[RunningGateway]:
    async with secured(folder) as running:
        running.parts.base.access.standing.seconds = 0.05
        yield running


@asynccontextmanager
async def notified(running: RunningGateway, key: str) -> AsyncIterator[EventStream]:
    async with http(running, key) as client:
        wire = Wire(client)
        async with wire.stream(await wire.session()) as stream:
            yield stream


@asynccontextmanager
async def listening(running: RunningGateway, key: str) -> AsyncIterator[EventStream]:
    async with http(running, key) as client, Wire(client).listen({"toolsListChanged": True}) as stream:
        yield stream


@asynccontextmanager
async def watching(running: RunningGateway, key: str) -> AsyncIterator[EventStream]:
    """The events of the console."""
    async with (
        http(running, key) as client,
        client.stream("GET", "/console/events", timeout=_BOUND_SECONDS) as answer,
    ):
        assert answer.status_code == 200
        yield EventStream(answer.aiter_lines())


Opened = Callable[[RunningGateway, str], AbstractAsyncContextManager[EventStream]]


async def ended(stream: EventStream) -> None:
    async with asyncio.timeout(_BOUND_SECONDS):
        async for _ in stream.lines:
            pass


@pytest.mark.parametrize("opened", [notified, listening, watching])
async def test_a_revoked_key_ends_its_streams_on_every_gateway_and_no_others(
    tmp_path: Path, opened: Opened
) -> None:
    async with gateway(tmp_path) as one, gateway(tmp_path) as other, AsyncExitStack() as streams:
        (revoked_key, revoked), (_, kept) = (
            await made(one, *SCOPES, name="leaver"),
            await made(one, *SCOPES, name="stayer"),
        )
        of_leaver = [await streams.enter_async_context(opened(each, revoked)) for each in (one, other)]
        of_stayer = [await streams.enter_async_context(opened(each, kept)) for each in (one, other)]
        remaining = [asyncio.create_task(ended(stream)) for stream in of_stayer]

        await machine_keys(one).revoke("acme", revoked_key.key_id)

        await asyncio.gather(*map(ended, of_leaver))
        assert not any(task.done() for task in remaining)
        async with http(other, revoked) as client:
            assert (await Wire(client).initialize()).status_code == 401
        for task in remaining:
            task.cancel()
        await asyncio.gather(*remaining, return_exceptions=True)


async def test_a_stream_ends_when_its_key_expires(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        _, key = await made(running, *SCOPES, lasting=timedelta(seconds=2))
        async with notified(running, key) as stream:
            await ended(stream)
        async with http(running, key) as client:
            answer: httpx2.Response = await Wire(client).initialize()
        assert answer.status_code == 401
