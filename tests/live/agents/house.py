"""A gateway that can be lost with its engine, and started again with its registry; and conversations that go on after that."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Collection, Coroutine, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from tests.live.agents.proxy import Proxy
from tests.live.conftest import LiveGateway, served
from tests.live.engine import LiveEngine
from tests.live.talk import Talk, talk

_BLOCK: Final = 64
_AT_ONCE: Final = 3


class Frozen(Protocol):
    """A conversation under a window, of a program that asks through ``proxy``."""

    proxy: Proxy

    async def go_on(self, own: Talk) -> None:
        """Thaw the window and ask further."""


def predicted(turn: dict[str, Any]) -> int:
    """The tokens of whole blocks that it shares with its parent; the last one is always computed."""
    return int(min(turn["parent_at"], turn["prompt_tokens"] - 1) // _BLOCK * _BLOCK)


def is_as_predicted(turn: dict[str, Any]) -> bool:
    """Whether it found the blocks that it shares with its parent, and no others."""
    return 0 < predicted(turn) == int(turn["cached_tokens"])


async def together(conversations: Iterable[Coroutine[Any, Any, None]]) -> None:
    """A few at a time: an engine answers three requests in little more time than one."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def in_turn(conversation: Coroutine[Any, Any, None]) -> None:
        async with places:
            await conversation

    async with asyncio.TaskGroup() as running:
        for conversation in conversations:
            running.create_task(in_turn(conversation))


@dataclass(slots=True)
class House:
    """The gateway in front of ``engine``, whose registry is ``database``."""

    engine: LiveEngine
    database: Path
    gateway: LiveGateway | None = None
    _running: ExitStack = field(default_factory=ExitStack)

    def start(self) -> LiveGateway:
        self.gateway = self._running.enter_context(served(self.engine, self.database, "acme"))
        return self.gateway

    def lose_everything(self) -> LiveGateway:
        """SIGKILL of gateway and engine, as a crash; both are there again, the gateway at another address."""
        assert self.gateway is not None
        os.kill(self.gateway.pid, signal.SIGKILL)
        self.stop()
        self.engine.kill("vllm")
        self.engine.kill("lmcache")
        self.engine.wait_ready()
        return self.start()

    async def resume(self, stories: Collection[Frozen]) -> None:
        """Lose everything, and have each of them go on."""
        gateway = self.lose_everything()
        async with talk(gateway.url, gateway.model) as own:
            for story in stories:
                story.proxy.target = gateway.url
            await together(story.go_on(own) for story in stories)

    def stop(self) -> None:
        self._running.close()
