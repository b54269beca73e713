"""Runs JMESPath in a process that is killed above its limits, and regular expressions by RE2 in a thread."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cwm.domain.errors import InvalidParameterError
from cwm.domain.result_query import Span
from cwm.ports.query_engine import Matches

_PROGRAM: Final = Path(__file__).with_name("jmespath_program.py")
_ANSWER_BYTES: Final = 16 * 2**20
_PATTERN_BYTES: Final = 8 * 2**20
_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class LocalQueryEngine:
    """The port :class:`cwm.ports.query_engine.QueryEngine` on this machine.

    Patterns have threads of their own: a search may take seconds, and everybody's large requests are read in the event loop's.
    """

    cpu_seconds: int = 2
    wall_seconds: float = 20.0
    memory_bytes: int = 2**30
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_THREADS, "cwm-pattern"), compare=False, repr=False
    )

    async def jmespath(self, document: bytes, expression: str) -> bytes:
        request = {
            "expression": expression,
            "cpu_seconds": self.cpu_seconds,
            "memory_bytes": self.memory_bytes,
            "answer_bytes": _ANSWER_BYTES,
        }
        output = await self._run(json.dumps(request).encode() + b"\n" + document)
        if output.startswith(b"="):
            return output[1:]
        if output.startswith(b"!"):
            raise InvalidParameterError(f"jmespath: {output[1:].decode()}", field="jmespath")
        raise _too_much("jmespath")

    async def matches(self, text: bytes, pattern: str, limit: int) -> Matches:
        return await self._matches(text, f"(?m){pattern}", limit, "regex")

    async def found(self, text: bytes, words: str, limit: int) -> Matches:
        import re2

        return await self._matches(text, f"(?i){re2.escape(words)}", limit, "search")

    async def _run(self, stdin: bytes) -> bytes:
        """The program's output; empty if it was killed or failed."""
        # -I: neither environment variables nor the current folder decide what the program imports.
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            str(_PROGRAM),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(self.wall_seconds):
                output, _ = await process.communicate(stdin)
        except TimeoutError:
            return b""
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return output if process.returncode == 0 else b""

    async def _matches(self, text: bytes, pattern: str, limit: int, name: str) -> Matches:
        import re2

        try:
            compiled = re2.compile(pattern.encode(), _options())
        except re2.error as error:
            raise InvalidParameterError(f"{name}: {_message(error)}", field=name) from None
        finally:
            # RE2 caches compiled patterns of many megabytes each.
            re2.purge()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._scan, compiled, text, limit, name)

    def _scan(self, compiled: Any, text: bytes, limit: int, name: str) -> Matches:
        """Find matches until the limit or the deadline. Each match takes time linear in the text."""
        spans: list[Span] = []
        deadline = time.monotonic() + self.wall_seconds
        for match in compiled.finditer(text):
            if len(spans) == limit:
                return Matches(tuple(spans), complete=False)
            if time.monotonic() > deadline:
                raise _too_much(name)
            spans.append(Span(*match.span()))
        return Matches(tuple(spans), complete=True)


def _options() -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_BYTES
    options.never_capture = True
    return options


def _message(error: Exception) -> str:
    """RE2's error message, which is bytes."""
    (message,) = error.args
    return message.decode(errors="replace") if isinstance(message, bytes) else str(message)


def _too_much(name: str) -> InvalidParameterError:
    return InvalidParameterError(f"{name}: this takes too much time or memory; narrow it.", field=name)
