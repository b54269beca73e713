"""FastMCP reads an environment of its own; it must not change what CWM promises."""

from __future__ import annotations

from pathlib import Path

import fastmcp
import httpx2
import pytest

from tests.transport.mcp.gateway import fastmcp_agent
from tests.transport.mcp.gateway import gateway as running_gateway


@pytest.fixture
def _hostile_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "strict_input_validation": False,
        "mask_error_details": False,
        "stateless_http": False,
        "json_response": True,
        "debug": True,
        "streamable_http_path": "/elsewhere",
        "http_host_origin_protection": True,
        "http_allowed_hosts": ["evil.test"],
        "http_allowed_origins": ["https://evil.test"],
    }.items():
        monkeypatch.setattr(fastmcp.settings, name, value)


@pytest.mark.usefixtures("_hostile_settings")
async def test_fastmcps_own_settings_change_nothing(tmp_path: Path, era: str) -> None:
    async with running_gateway(tmp_path) as running:
        async with fastmcp_agent(running.url, era) as agent:
            assert (await agent.call("window_list", {"limit": "20"})).error["code"] == "CWM-1003"
            assert (await agent.call("window_list", {"limit": 20})).value["total"] == 0
        async with httpx2.AsyncClient(trust_env=False) as http:
            for headers in ({"host": "evil.test"}, {"origin": "https://evil.test"}):
                response = await http.post(f"{running.url}/mcp", json={}, headers=headers)
                assert response.status_code in {403, 421}
