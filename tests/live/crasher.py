"""A process that runs one operation of CWM and is killed at a chosen step of it.

``python -m tests.live.crasher`` imports CWM once and forks for each line of JSON on standard input:
``{environ, operation, arguments, die_after}``. The fork dies by SIGKILL when it has made so many distinct calls to
the world outside; the answer is ``{steps, finished, error}``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import Any
from unittest import mock

from cwm import settings
from cwm.adapters.lmcache.client import LmcacheTier
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.vllm.client import VllmEngine
from cwm.domain.errors import CwmError
from cwm.domain.principal import Principal
from cwm.wiring import engine_list, foundation
from cwm.wiring.parts import build_parts


class Crasher:
    """The other end of that process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(
        self, environ: dict[str, str], operation: str, *arguments: Any, die_after: int | None = None
    ) -> dict[str, Any]:
        """Blocks until the fork has ended, one way or the other."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {
            "environ": environ,
            "operation": operation,
            "arguments": arguments,
            "die_after": die_after,
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return dict(json.loads(self._process.stdout.readline()))


@contextmanager
def crasher() -> Iterator[Crasher]:
    command = [sys.executable, "-m", "tests.live.crasher"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Crasher(process)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)


class _Steps:
    """Counts calls; what is polled counts once."""

    def __init__(self, pipe: int, die_after: int | None) -> None:
        self._pipe, self._die_after = pipe, die_after
        self._last = ""
        self._count = 0
        self.counting = False

    def made(self, name: str) -> None:
        if not self.counting or name == self._last:
            return
        self._last = name
        self._count += 1
        os.write(self._pipe, f"{name}\n".encode())
        if self._count == self._die_after:
            os.kill(os.getpid(), signal.SIGKILL)


class _Watched:
    """An adapter whose calls are steps."""

    def __init__(self, adapter: Any, room: str, steps: _Steps) -> None:
        self._adapter, self._room, self._steps = adapter, room, steps

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._adapter, name)
        if name == "beside":
            return lambda engine: _Watched(found(engine), self._room, self._steps)
        if not iscoroutinefunction(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            answer = await found(*args, **kwargs)
            self._steps.made(f"{self._room}.{name}")
            return answer

        return call


async def _run(order: dict[str, Any], steps: _Steps) -> None:
    loaded = settings.load(order["environ"])
    with (
        mock.patch.object(foundation, "SqlRegistry", lambda *a: _Watched(SqlRegistry(*a), "registry", steps)),
        mock.patch.object(engine_list, "LmcacheTier", lambda *a: _Watched(LmcacheTier(*a), "lmcache", steps)),
        mock.patch.object(engine_list, "VllmEngine", lambda *a: _Watched(VllmEngine(*a), "vllm", steps)),
    ):
        parts = build_parts(loaded)
    async with parts.close():
        await parts.engine_side.directory.identity()
        steps.counting = True
        operation = getattr(parts.services, order["operation"])
        await operation(Principal(loaded.isolation.tenant, "agent"), *order["arguments"])


def _fork(order: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 0
        try:
            asyncio.run(_run(order, _Steps(writing, order["die_after"])))
        except CwmError as error:
            os.write(writing, f"!{error.code}: {error.message}\n".encode())
            status = 1
        os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        lines = pipe.read().splitlines()
    _, status = os.waitpid(child, 0)
    errors = [line for line in lines if line.startswith("!")]
    return {
        "steps": [line for line in lines if not line.startswith("!")],
        "finished": os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0,
        "killed": os.WIFSIGNALED(status),
        "error": errors[0][1:] if errors else None,
    }


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_fork(json.loads(line))) + "\n")
        sys.stdout.flush()
