"""What recording adds to a turn: with a session id against without, in front of an engine that answers at once."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from random import Random
from string import ascii_letters
from typing import Final
from uuid import uuid4

import httpx2

from cwm_bench.harness.figures import median
from cwm_bench.harness.gateway import Gateway, gateway
from cwm_bench.harness.goals import Figure, under
from cwm_bench.harness.servers import answering, cpu_ms, free_port, running
from cwm_bench.tree.chat import user
from cwm_bench.tree.stub_engine import ANSWER, MODEL

_GOALS_MS: Final = {8_000: 2, 100_000: 10}
_GROWTH_TURNS: Final = 45
_CONVERSATIONS: Final = 3
_PAIRS: Final = 30
_QUESTION_CHARS: Final = 64
_CHARS_A_TOKEN: Final = 4
_TIMEOUT_SECONDS: Final = 60
NOTE: Final = (
    f"medians of {_CONVERSATIONS * _PAIRS} pairs of the same chat request, with CWM-Session-Id and with CWM-Capture: off, in turns, in conversations of "
    f"{_GROWTH_TURNS} to {_GROWTH_TURNS + _PAIRS} turns; in front of an engine that answers at once with ids, on SQLite; with a session the engine sends "
    "the ids of the whole prompt"
)


@dataclass(frozen=True, slots=True)
class Size:
    """A context length in tokens, and whether the answer is streamed."""

    tokens: int
    stream: bool

    @property
    def key(self) -> str:
        return f"recording_ms_{self.tokens // 1000}k{'_stream' if self.stream else ''}"


SIZES: Final = tuple(Size(tokens, stream) for tokens in _GOALS_MS for stream in (False, True))


@dataclass(slots=True)
class RecordingTimes:
    """Turns with a session and the same requests without, in pairs: ms until the answer's end, and of the gateway's processors."""

    recorded: list[tuple[float, float]] = field(default_factory=list)
    bare: list[tuple[float, float]] = field(default_factory=list)

    def added(self) -> tuple[float, float]:
        """Medians of what recording adds to both."""
        pairs = zip(self.recorded, self.bare, strict=True)
        differences = [(turn[0] - bare[0], turn[1] - bare[1]) for turn, bare in pairs]
        ms, cpu = zip(*differences, strict=True)
        return median(ms), median(cpu)


async def measure(folder: Path, report: Callable[[str], None]) -> list[Figure]:
    """Measure each size in a session of its own; ``folder`` gets the gateway's registry."""
    figures = []
    async with (
        _servers(folder) as endpoint,
        httpx2.AsyncClient(trust_env=False, timeout=_TIMEOUT_SECONDS) as http,
    ):
        for size in SIZES:
            report(f"recording {size.tokens:,} tokens{', streamed' if size.stream else ''}")
            times = RecordingTimes()
            for _ in range(_CONVERSATIONS):
                await _Turns(http, endpoint, size).measure(times)
            figures += figures_of(size, times)
    return figures


def figures_of(size: Size, times: RecordingTimes) -> list[Figure]:
    name = f"{size.tokens:,} tokens, {'streamed' if size.stream else 'whole'}"
    bare, (added_ms, cpu) = median([ms for ms, _ in times.bare]), times.added()
    return [
        Figure(size.key, f"recording adds at {name}", added_ms, "ms", goal=under(_GOALS_MS[size.tokens])),
        Figure(f"{size.key}_cpu", f"of it processor time of the gateway at {name}", cpu, "ms"),
        Figure(f"{size.key}_of", f"the exchange without it at {name}", bare, "ms"),
    ]


@asynccontextmanager
async def _servers(folder: Path) -> AsyncIterator[Gateway]:
    """A gateway in front of the stub."""
    port, log = free_port(), folder / "stub.log"
    async with running(["-m", "cwm_bench.tree.stub_engine", str(port)], {}, log) as process:
        engine = f"http://127.0.0.1:{port}"
        await answering(f"{engine}/version", process, log)
        variables = {
            "CWM_VLLM_URL": engine,
            "CWM_LMCACHE_URL": "none",
            "CWM_COORDINATOR_URL": "none",
            "CWM_DB_PATH": str(folder / "recording.db"),
            "CWM_SECRET_FILE": str(folder / "secret"),
        }
        async with gateway(variables, folder / "recording.log") as endpoint:
            yield endpoint


@dataclass(slots=True)
class _Turns:
    """A conversation that grows to the size, and then by a short question and answer each turn."""

    http: httpx2.AsyncClient
    gateway: Gateway
    size: Size
    session: str = field(default_factory=lambda: f"recording_{uuid4().hex[:12]}")
    messages: list[dict[str, str]] = field(default_factory=list)
    random: Random = field(default_factory=lambda: Random(0))  # noqa: S311 - repeatable, not secret

    async def measure(self, times: RecordingTimes) -> None:
        """The first requests, while the conversation grows, warm everything up."""
        for _ in range(_GROWTH_TURNS):
            await self._ask(self._body(self.size.tokens * _CHARS_A_TOKEN // _GROWTH_TURNS), recorded=True)
        for number in range(_PAIRS):
            body = self._body(_QUESTION_CHARS)
            for recorded in (True, False) if number % 2 else (False, True):
                used = cpu_ms(self.gateway.pid)
                ms = await self._ask(body, recorded=recorded)
                cpu = cpu_ms(self.gateway.pid) - used
                (times.recorded if recorded else times.bare).append((ms, cpu))

    def _body(self, chars: int) -> bytes:
        """The next request: the conversation and a message of this length."""
        if self.messages:
            self.messages.append({"role": "assistant", "content": ANSWER})
        self.messages.append(user("".join(self.random.choices(ascii_letters, k=chars))))
        return json.dumps({"model": MODEL, "messages": self.messages, "stream": self.size.stream}).encode()

    async def _ask(self, body: bytes, *, recorded: bool) -> float:
        """Ms until the end of the answer."""
        headers = {
            "content-type": "application/json",
            **({"CWM-Session-Id": self.session} if recorded else {"CWM-Capture": "off"}),
        }
        started = time.perf_counter()
        response = await self.http.post(
            f"{self.gateway.url}/v1/chat/completions", content=body, headers=headers
        )
        ms = (time.perf_counter() - started) * 1000
        if (response.status_code, "CWM-Turn" in response.headers) != (HTTPStatus.OK, recorded):
            raise RuntimeError(f"the gateway answered {response.status_code}: {response.text[:300]}")
        return ms
