"""How long a server that stops waits for what runs."""

from __future__ import annotations

import asyncio

import httpx2
import pytest
from fastapi import FastAPI

from cwm.settings import Http, Settings
from cwm.transport.http.server import GatewayServer

pytestmark = pytest.mark.slow

_LESS_THAN_HALF_A_SECOND = 0.49


async def test_what_runs_may_go_on_for_part_of_a_second_where_the_setting_says_so() -> None:
    asked, waited_for = asyncio.Event(), asyncio.Event()

    class Watched(GatewayServer):
        async def _wait_tasks_to_complete(self) -> None:
            waited_for.set()
            await super()._wait_tasks_to_complete()

    app = FastAPI()
    app.state.end_streams = lambda: None

    @app.get("/")
    async def answer() -> str:
        asked.set()
        await waited_for.wait()
        return "whole"

    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    settings = Settings(http=Http(port=0, drain_seconds=_LESS_THAN_HALF_A_SECOND))
    server = Watched(settings, app, ready.set_result)
    serving = asyncio.create_task(server.serve())
    url = await ready
    async with httpx2.AsyncClient(trust_env=False) as http, asyncio.timeout(30):
        answering = asyncio.create_task(http.get(url))
        await asked.wait()
        server.should_exit = True
        assert (await answering).json() == "whole"
        await serving
