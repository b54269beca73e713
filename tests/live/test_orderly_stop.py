"""vLLM is stopped in order in the middle of answers, as by `kubectl delete`: short ones end, and no other one looks whole."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any, Final

import httpx2
import pytest

from tests.live.conftest import LiveGateway, served
from tests.live.engine import LiveEngine, running

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

_ASKED: Final = [{"role": "user", "content": "Go on and on."}]
_CHAT, _MESSAGES, _RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
# Messages have no field by which a model goes on behind its end.
_NO_END: Final = {
    "type": "json_schema",
    "schema": {"type": "array", "items": {"type": "boolean"}, "minItems": 5000},
}
_LONG: Final[dict[str, dict[str, Any]]] = {
    _CHAT: {"messages": _ASKED, "max_tokens": 7000},
    _MESSAGES: {"messages": _ASKED, "max_tokens": 7000, "output_config": {"format": _NO_END}},
    _RESPONSES: {"input": "Go on and on.", "max_output_tokens": 7000},
}
_SHORT_TOKENS: Final = 60
_ENDS: Final = ('"finish_reason":"', "message_stop", "response.completed", "response.incomplete")
# vLLM's ten seconds, on a machine that is busy.
_STOPPED_SECONDS: Final = 90


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveEngine]:
    with running(tmp_path_factory.mktemp("stopped"), "tiny") as started:
        yield started


@pytest.fixture(scope="module")
def gateway(engine: LiveEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGateway]:
    with served(engine, tmp_path_factory.mktemp("gateway") / "cwm.db", "acme") as own:
        yield own


async def streamed(gateway: LiveGateway, path: str, body: dict[str, Any], begun: asyncio.Event) -> str:
    """All that a client gets; ``begun`` is set with the first of it."""
    pieces: list[str] = []
    request = {"model": gateway.model, "stream": True, "temperature": 0, "ignore_eos": True, **body}
    async with (
        httpx2.AsyncClient(timeout=120, trust_env=False) as http,
        http.stream("POST", f"{gateway.url}{path}", json=request) as answer,
    ):
        async for piece in answer.aiter_text():
            pieces.append(piece)
            begun.set()
    return "".join(pieces)


async def test_of_an_engine_that_is_stopped_short_answers_end_and_long_ones_say_that_they_did_not(
    engine: LiveEngine, gateway: LiveGateway
) -> None:
    requests = [*_LONG.items(), (_CHAT, {"messages": _ASKED, "max_tokens": _SHORT_TOKENS})]
    begun = [asyncio.Event() for _ in requests]
    async with asyncio.timeout(_STOPPED_SECONDS), asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(streamed(gateway, path, body, event))
            for (path, body), event in zip(requests, begun, strict=True)
        ]
        for each in begun:
            await each.wait()
        os.kill(engine.pids("vllm")[0], signal.SIGTERM)
    *long, short = (task.result() for task in tasks)
    assert '"finish_reason":"length"' in short
    for (path, _), answer in zip(requests, long, strict=False):
        assert "CWM-5001" in answer.rstrip().splitlines()[-1], (path, answer[-500:])
        assert not [end for end in _ENDS if end in answer], (path, answer[-500:])
    await asyncio.to_thread(engine.wait_ready)
