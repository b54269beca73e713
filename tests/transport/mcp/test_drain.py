"""What runs in a gateway that is told to stop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fastmcp import Client

from tests.transport.mcp.test_replicas import Process
from tests.transport.mcp.upstream_hosts import hosted

pytestmark = pytest.mark.slow


async def listens(url: str) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
    except OSError:
        return False
    writer.close()
    return True


@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_a_call_that_runs_when_sigterm_comes_gets_its_answer(tmp_path: Path, era: str) -> None:
    async with hosted(legacy=False) as host:
        upstream = f"upstreams:\n  team:\n    url: {host.url}\n    stateless: true\n"
        (tmp_path / "cwm.yaml").write_text(upstream)
        gateway = await Process.start(tmp_path)
        async with Client(f"{gateway.url}/mcp", mode=era) as client, asyncio.timeout(60):
            call = asyncio.create_task(client.call_tool_mcp("team_hold", {}))
            await host.seen.began.wait()
            gateway.process.terminate()
            while await listens(gateway.url):
                pass
            cut, _ = await asyncio.wait({call}, timeout=1)

            host.seen.go_on.set()

            assert not cut
            # Nothing but the call: the client would ask for the tool's schema next, and nobody listens any more.
            assert (await call).structured_content == {"result": "held"}
        assert await gateway.process.wait() == 0
