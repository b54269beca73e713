"""What runs in a gateway that is told to stop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.adapters.vllm.fake_vllm import Behaviour, fake_vllm
from tests.transport.mcp.listening.test_replicas import Process
from tests.transport.mcp.upstream_hosts import hosted
from tests.transport.mcp.wire import MODERN_META, Wire, wired

pytestmark = pytest.mark.slow

TOOL = "team_hold"
ERAS = ["2025-11-25", "2026-07-28"]


async def called(wire: Wire, era: str, tool: str = TOOL, **arguments: str) -> httpx2.Response:
    if era == "2025-11-25":
        return await wire.ask(await wire.session(), "tools/call", name=tool, arguments=arguments)
    params = {"name": tool, "arguments": arguments, "_meta": MODERN_META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return await wire.post(body, mcp_protocol_version=era, mcp_method="tools/call", mcp_name=tool)


async def listens(url: str) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
    except OSError:
        return False
    writer.close()
    return True


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_that_runs_when_sigterm_comes_gets_its_answer(tmp_path: Path, era: str) -> None:
    async with hosted(legacy=False) as host:
        upstream = f"upstreams:\n  team:\n    url: {host.url}\n    stateless: true\n"
        (tmp_path / "cwm.yaml").write_text(upstream)
        gateway = await Process.start(tmp_path)
        async with wired(gateway.url) as wire, asyncio.timeout(60):
            call = asyncio.create_task(called(wire, era))
            await host.seen.began.wait()
            gateway.process.terminate()
            while await listens(gateway.url):
                pass
            cut, _ = await asyncio.wait({call}, timeout=1)
            host.seen.go_on.set()

            assert not cut
            assert '"held"' in (await call).text
        assert await gateway.process.wait() == 0


async def test_a_thaw_whose_client_left_is_not_abandoned_when_sigterm_comes(tmp_path: Path) -> None:
    """The engine may be loading KV for it, and may die of a request that is dropped meanwhile."""
    async with fake_vllm() as vllm:
        without = {"CWM_LMCACHE_URL": "none", "CWM_COORDINATOR_URL": "none"}
        gateway = await Process.start(tmp_path, CWM_VLLM_URL=vllm.url, **without)
        async with wired(gateway.url) as wire, asyncio.timeout(60):
            for tool, arguments in (
                ("session_create", {"session_id": "s"}),
                ("session_generate", {"session_id": "s", "text": "hey"}),
                ("window_freeze", {"session_id": "s", "window_name": "w"}),
            ):
                (await called(wire, ERAS[1], tool, **arguments)).raise_for_status()
            vllm.behaviour = Behaviour.WAITS_BEFORE_ANSWERING
            thaw = asyncio.create_task(called(wire, ERAS[1], "window_thaw", window_name="w"))
            await vllm.waiting.wait()
            thaw.cancel()
        gateway.process.terminate()
        left = asyncio.create_task(vllm.turns[-1].left.wait())
        cut, _ = await asyncio.wait({left}, timeout=1)
        left.cancel()
        vllm.release.set()
        assert not cut
        assert await gateway.process.wait() == 0
