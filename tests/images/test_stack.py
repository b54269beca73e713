"""The whole of compose.yaml, as a client of the proxy sees it while gateways come and go."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from fastmcp import Client

from tests.images.stack import Container, Stack, docker

pytestmark = [pytest.mark.images, pytest.mark.slow, pytest.mark.timeout(600)]

ERAS = ("legacy", "2026-07-28")
_WAIT_SECONDS = 60


@asynccontextmanager
async def agent(running: Stack, era: str = "auto") -> AsyncIterator[Client[Any]]:
    async with Client(f"{running.url}/mcp", mode=era) as client:
        yield client


async def told(client: Client[Any], tool: str, **arguments: Any) -> dict[str, Any]:
    return dict((await client.call_tool(tool, arguments)).structured_content or {})


async def kept(client: Client[Any], value: object) -> str:
    key = f"k-{uuid4().hex}"
    await told(client, "context_set", key=key, value=value, scope="tenant")
    return key


async def read(client: Client[Any], key: str) -> object:
    return (await told(client, "context_get", key=key, scope="tenant"))["value"]


def until(holds: Callable[[], bool], why: str) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, why
        time.sleep(0.1)


@pytest.fixture
def both(running: Stack) -> tuple[Container, Container]:
    """Two gateways that run, whatever the test before has done to them."""
    running.up()
    first, second = running.replicas()
    return first, second


@pytest.mark.parametrize("era", ERAS)
async def test_what_one_replica_was_told_the_other_knows(
    running: Stack, both: tuple[Container, Container], era: str
) -> None:
    first, second = both
    second.kill("KILL")
    async with agent(running, era) as client:
        key = await kept(client, {"era": era})
        await asyncio.to_thread(running.up)
        first.kill("KILL")
        assert [each.id for each in running.replicas()] == [second.id]
        assert await read(client, key) == {"era": era}


async def test_a_replica_that_is_killed_takes_nothing_with_it(
    running: Stack, both: tuple[Container, Container]
) -> None:
    async with agent(running) as client:
        key = await kept(client, "before")
        both[0].kill("KILL")
        for _ in range(20):
            assert await read(client, key) == "before"
        assert [each.id for each in running.replicas()] == [both[1].id]


@pytest.mark.parametrize("era", ERAS)
async def test_a_stream_that_runs_when_sigterm_comes_is_finished(
    running: Stack, both: tuple[Container, Container], era: str
) -> None:
    asked_by: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        if not asked_by.done():
            asked_by.set_result(message or "")

    async with agent(running, era) as client, agent(running) as other:
        held = asyncio.create_task(client.call_tool("slow_hold", {}, progress_handler=hear))
        async with asyncio.timeout(_WAIT_SECONDS):
            address = await asked_by
        leaving = next(each for each in both if address in each.addresses)
        leaving.kill("TERM")
        await asyncio.to_thread(until, lambda: not listens(leaving), "it stops taking connections")
        key = await kept(other, "meanwhile")
        assert not (await asyncio.wait({held}, timeout=2))[0], "it is cut"

        running.go_on()
        async with asyncio.timeout(_WAIT_SECONDS):
            assert (await held).data == "held to the end"
        assert await read(other, key) == "meanwhile"
    assert await asyncio.to_thread(leaving.exit_code) == 0


def listens(container: Container) -> bool:
    """Whether its gateway takes connections; the container still runs while it drains."""
    code = "import socket; print(socket.socket().connect_ex(('127.0.0.1', 8700)))"
    return container.python(code) == "0"


async def test_what_was_kept_is_there_after_everything_was_replaced(
    running: Stack, both: tuple[Container, Container]
) -> None:
    async with agent(running) as client:
        key = await kept(client, {"kept": True})
    await asyncio.to_thread(running.compose, "down")
    await asyncio.to_thread(running.up)

    async with agent(running) as client:
        assert await read(client, key) == {"kept": True}
    assert {each.id for each in running.replicas()}.isdisjoint({each.id for each in both})


def test_only_the_proxy_can_be_reached_and_only_on_loopback(running: Stack) -> None:
    published = {
        service: {binding["HostIp"] for bindings in ports.values() for binding in bindings or []}
        for service in ("proxy", "gateway", "postgres", "valkey")
        for each in running.containers(service)
        if (ports := each.host_config["PortBindings"])
    }

    assert published == {"proxy": {"127.0.0.1"}}


def test_the_gateways_metrics_are_not_published(running: Stack) -> None:
    with httpx2.Client(base_url=running.url, trust_env=False) as http:
        assert http.get("/healthz").status_code == 200
        assert http.get("/metrics").status_code == 404


def test_databases_are_reached_from_the_back_network_alone(running: Stack) -> None:
    for service in ("postgres", "valkey"):
        networks = running.containers(service)[0].state["NetworkSettings"]["Networks"]
        assert list(networks) == [f"{running.project}_back"]
    assert json.loads(docker("network", "inspect", f"{running.project}_back"))[0]["Internal"] is True


def test_valkey_wants_its_password_and_never_evicts(running: Stack) -> None:
    valkey = running.containers("valkey")[0].id
    assert "NOAUTH" in docker("exec", valkey, "valkey-cli", "get", "x")
    ask = 'REDISCLI_AUTH="$(cat /run/secrets/valkey_password)" valkey-cli config get maxmemory-policy'
    assert "noeviction" in docker("exec", valkey, "sh", "-c", ask)


@pytest.mark.parametrize("service", ["proxy", "gateway", "postgres", "valkey"])
def test_every_container_has_a_read_only_root_few_rights_and_a_limit(running: Stack, service: str) -> None:
    for each in running.containers(service):
        config = each.host_config
        assert config["ReadonlyRootfs"] is True
        assert config["CapDrop"] == ["ALL"]
        assert "no-new-privileges:true" in config["SecurityOpt"]
        assert config["Memory"] > 0
        assert config["NanoCpus"] > 0
        assert process_uid(each) != "0"


def process_uid(container: Container) -> str:
    """The user of what serves: with ``init`` that is not the first process."""
    code = (
        "for p in /proc/[0-9]*; do echo $(cat $p/comm) $(awk '/^Uid/ {print $2}' $p/status); done 2>/dev/null"
    )
    uids = dict(
        line.rsplit(" ", 1)
        for line in docker("exec", container.id, "sh", "-c", code).splitlines()
        if " " in line
    )
    return next(
        uid
        for name, uid in uids.items()
        if name in {"cwm", "python", "python3", "haproxy", "postgres", "valkey-server"}
    )


def test_no_secret_is_among_variables_or_arguments(running: Stack) -> None:
    folder = Path(running.environ["CWM_SECRETS"])
    secrets = [
        (folder / name).read_text().strip() for name in ("postgres_password", "valkey_password", "cwm_secret")
    ]
    for service in ("proxy", "gateway", "postgres", "valkey"):
        for each in running.containers(service):
            shown = json.dumps([each.state["Config"], each.state["Args"]])
            assert not [secret for secret in secrets if secret in shown]


async def test_a_gateway_stays_far_below_its_memory_limit(
    running: Stack, both: tuple[Container, Container]
) -> None:
    async with agent(running) as client:
        # Few calls: the other tests' count against the same limit of 60 a minute.
        for number in range(10):
            await kept(client, ["x" * 1000] * (25 * number))
    for each in both:
        assert resident_bytes(each) < each.host_config["Memory"] / 2


def resident_bytes(container: Container) -> int:
    code = """
import glob
pages = 0
for name in glob.glob('/proc/[0-9]*/status'):
    pages += sum(int(line.split()[1]) for line in open(name) if line.startswith('VmRSS'))
print(pages * 1024)
"""
    return int(container.python(code))
