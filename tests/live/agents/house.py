"""A gateway that can be lost with its engine, and started again with its registry; and conversations that go on after that."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from tests.live.agents.proxy import Proxy
from tests.live.conftest import LiveGateway, served
from tests.live.engine import LiveEngine
from tests.live.talk import Talk, talk

_BLOCK: Final = 64


class Frozen(Protocol):
    """A conversation under a window, of a program that asks through ``proxy``."""

    proxy: Proxy

    async def go_on(self, own: Talk) -> None:
        """Thaw the window and ask further."""


def predicted(turn: dict[str, Any]) -> int:
    """The tokens of whole blocks that it shares with its parent; the last one is always computed."""
    return int(min(turn["parent_at"], turn["prompt_tokens"] - 1) // _BLOCK * _BLOCK)


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

    async def resume(self, stories: Iterable[Frozen]) -> None:
        """Lose everything, and have each of them go on."""
        gateway = self.lose_everything()
        async with talk(gateway.url, gateway.model) as own:
            for story in stories:
                story.proxy.target = gateway.url
                await story.go_on(own)

    def stop(self) -> None:
        self._running.close()
