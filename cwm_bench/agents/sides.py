"""Where the same requests go in one run: vLLM itself, CWM and LiteLLM's proxy in front of it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2

from cwm.stack.local import LocalStack
from cwm_bench.agents.clients import AgentClient
from cwm_bench.agents.conversation import Conversation
from cwm_bench.harness.gateway import QUIET, engine_variables, gateway
from cwm_bench.harness.servers import answering, free_port, running

VLLM, CWM, LITELLM, AGAIN = "vLLM", "CWM", "LiteLLM", "vLLM again"
_LITELLM_VARIABLES: Final = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1"}
_FAILED: Final = (b"event: error", b'data: {"error"')


@dataclass(frozen=True, slots=True)
class Side:
    """``key`` is the bearer token of its clients."""

    name: str
    url: str
    key: str = "none"


@dataclass(frozen=True, slots=True)
class Asked:
    """Milliseconds until the first byte of an answer and until its end; ``turn`` and ``session`` are where CWM recorded it."""

    first_ms: float
    whole_ms: float
    turn: str
    session: str


@asynccontextmanager
async def asking() -> AsyncIterator[httpx2.AsyncClient]:
    """Connections for all clients. vLLM closes one after 5 idle seconds, and a request at that moment fails."""
    limits = httpx2.Limits(max_connections=64, max_keepalive_connections=64, keepalive_expiry=2)
    async with httpx2.AsyncClient(timeout=300, trust_env=False, limits=limits) as http:
        yield http


async def ask(
    http: httpx2.AsyncClient,
    side: Side,
    client: AgentClient,
    conversation: Conversation,
    model: str,
    session: str,
    max_tokens: int,
) -> Asked:
    """Send a request as ``client`` does and read all of the answer. Raises RuntimeError when it is an error."""
    content = json.dumps(client.body(conversation, model, max_tokens)).encode()
    headers = {
        "content-type": "application/json",
        "authorization": f"Bearer {side.key}",
        **client.named(session),
    }
    first, pieces = 0.0, list[bytes]()
    started = time.perf_counter()
    async with http.stream(
        "POST", f"{side.url}{client.protocol}", content=content, headers=headers
    ) as response:
        async for piece in response.aiter_raw():
            first = first or time.perf_counter()
            pieces.append(piece)
    ended, answer = time.perf_counter(), b"".join(pieces)
    if response.status_code != 200 or any(mark in answer for mark in _FAILED):
        raise RuntimeError(
            f"{side.url}{client.protocol} answered {response.status_code}: {answer[:500].decode()}"
        )
    answer_headers = response.headers
    return Asked(
        (first - started) * 1000,
        (ended - started) * 1000,
        answer_headers.get("CWM-Turn", ""),
        answer_headers.get("CWM-Session-Id", ""),
    )


@asynccontextmanager
async def sides(
    stack: LocalStack, folder: Path, litellm: Path | None, report: Callable[[str], None]
) -> AsyncIterator[list[Side]]:
    """The first and the last are vLLM: what differs between the two is noise. LiteLLM's proxy only where it starts."""
    async with AsyncExitStack() as resources:
        variables = {**engine_variables(stack, folder), **QUIET}
        endpoint = await resources.enter_async_context(gateway(variables, folder / "gateway.log"))
        sides = [Side(VLLM, stack.vllm_url), Side(CWM, endpoint.url)]
        if program := litellm_program(litellm):
            report(f"starting {program}")
            try:
                beside = await resources.enter_async_context(_litellm(program, stack, folder))
            except (RuntimeError, TimeoutError) as error:
                report(f"LiteLLM's proxy does not start, so it is left out: {str(error) or 'no answer'}")
            else:
                sides.append(beside)
        yield [*sides, Side(AGAIN, stack.vllm_url)]


def litellm_program(path: Path | None) -> Path | None:
    """The executable of LiteLLM: the named one, or one beside this Python or on PATH."""
    if path is not None:
        return path
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which("litellm", path=places)
    return Path(program) if program else None


def in_turns(sides: Sequence[Side], number: int) -> Sequence[Side]:
    """``sides``, each first in its turn."""
    first = number % len(sides)
    return (*sides[first:], *sides[:first])


@asynccontextmanager
async def _litellm(program: Path, stack: LocalStack, folder: Path) -> AsyncIterator[Side]:
    """Its proxy in front of the engine, with its defaults; it starts only with a master key. Raises RuntimeError with its log when it does not start."""
    key = f"sk-{secrets.token_hex(32)}"
    port, config, log = free_port(), folder / "litellm.json", folder / "litellm.log"
    target = {
        "model": f"hosted_vllm/{stack.model_name}",
        "api_base": f"{stack.vllm_url}/v1",
        "api_key": "none",
    }
    config.write_text(
        json.dumps(
            {
                "model_list": [{"model_name": stack.model_name, "litellm_params": target}],
                "litellm_settings": {"drop_params": True},
            }
        )
    )
    arguments = ["--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
    variables = {**_LITELLM_VARIABLES, "LITELLM_MASTER_KEY": key}
    async with running(arguments, variables, log, program=str(program)) as process:
        url = f"http://127.0.0.1:{port}"
        await answering(f"{url}/health/liveliness", process, log)
        yield Side(LITELLM, url, key)
