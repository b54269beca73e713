"""What runs in a gateway that is told to stop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.transport.mcp.test_replicas import Process
from tests.transport.mcp.upstream_hosts import hosted
from tests.transport.mcp.wire import MODERN_META, Wire, wired

pytestmark = pytest.mark.slow

TOOL = "team_hold"
ERAS = ["2025-11-25", "2026-07-28"]


async def called(wire: Wire, era: str) -> httpx2.Response:
    if era == "2025-11-25":
        return await wire.ask(await wire.session(), "tools/call", name=TOOL, arguments={})
    params = {"name": TOOL, "arguments": {}, "_meta": MODERN_META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return await wire.post(body, mcp_protocol_version=era, mcp_method="tools/call", mcp_name=TOOL)


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
