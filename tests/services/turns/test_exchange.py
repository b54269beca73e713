"""An exchange with the engine does not hold up the other requests of its gateway."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from cwm.adapters.vllm.turns.openai.answer import BodyAnswer
from cwm.ports.engine import SessionName
from cwm.services.turns.exchange import Exchange, Head, Outgoing
from tests.fakes.engine import FakeEngine


class Responding(FakeEngine):
    """Answers each forwarded request with one JSON body of about ``size`` bytes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    @asynccontextmanager
    async def forward(
        self,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        session: SessionName | None = None,
    ) -> AsyncIterator[_Response]:
        yield _Response(b'{"choices": [{"text": "' + b"x" * self._size + b'"}]}')


class _Response:
    status = 200
    headers = ((b"content-type", b"application/json"),)
    decision = None

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self._body


class Watched(BodyAnswer):
    """Notes which thread reads the answer."""

    __slots__ = ("thread",)

    def finish(self) -> bytes:
        self.thread = threading.current_thread()
        return super().finish()


@pytest.mark.parametrize(("size", "aside"), [(1_000, False), (1_000_000, True)])
async def test_a_large_answer_is_read_beside_the_event_loop(size: int, *, aside: bool) -> None:
    answer = Watched(hide_ids=True)

    async def settle(_: Exchange, head: Head, answer: object) -> None:
        """Nothing to record."""

    exchange = Exchange(
        Responding(size), Outgoing("POST", "/v1/completions", b"{}", {}), lambda _: answer, settle
    )
    running = asyncio.create_task(exchange.run())
    body = b"".join([chunk async for chunk in exchange.chunks()])
    await running
    assert len(body) > size
    assert (answer.thread is not threading.current_thread()) is aside
