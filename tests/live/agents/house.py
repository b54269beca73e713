"""A gateway that can be lost with its engine, and started again with its registry."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.live.conftest import LiveGateway, served
from tests.live.engine import LiveEngine


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

    def stop(self) -> None:
        self._running.close()
