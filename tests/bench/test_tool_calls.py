"""``cwm bench gateway`` measures what it says, on servers of its own."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path

import httpx2
import pytest
import redis

from cwm_bench import tool_calls
from cwm_bench.context import reload
from cwm_bench.harness import rpc


@pytest.mark.slow
async def test_it_compares_both_eras_and_counts_what_a_session_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, few in (("_CALLS", 4), ("_SESSIONS", (2,)), ("_IDLE_SESSIONS", 20), ("_WARM_SESSIONS", 5)):
        monkeypatch.setattr(tool_calls, name, few)
    told: list[str] = []
    monkeypatch.setattr(reload, "_RELOADS", 2)
    report = await tool_calls.run(told.append, tmp_path, rounds=3)
    compared = {"throughput_ratio", "added_ms_upstream"}
    with_more = {f"{figure}_{what}" for figure in compared for what in ("replica", "team")}
    reloads = {"reload_ms", "reload_worst_ms", "reload_dropped_calls"}
    assert set(report.summary) == {*compared, *with_more, *reloads, "bytes_per_session"}
    assert report.summary["throughput_ratio"] > 0
    *calls, changes = report.sections
    for section in calls:
        assert [row[0] for row in section.rows] == ["2026-07-28, 2", "2025-11-25, 2"]
        assert all(figure > 0 for row in section.rows for figure in row[1:-1])
    assert [row[:2] for row in changes.rows] == [("an upstream comes", 2), ("an upstream goes", 2)]
    assert all(figure > 0 for row in changes.rows for figure in row[2:-1])
    assert report.summary["reload_dropped_calls"] == 0
    assert told[-1] == "20 idle sessions"


@pytest.mark.slow
async def test_what_a_team_has_on_is_on(tmp_path: Path, redis_url: str) -> None:
    log = tmp_path / "servers.log"
    async with (
        tool_calls.server(log, "bare") as bare,
        tool_calls.server(log, "collector") as collector,
        httpx2.AsyncClient(trust_env=False) as http,
    ):
        async with tool_calls.team(log, bare.url, redis_url, collector.origin) as (cwm, credentials):
            call = rpc.request(rpc.MODERN, "tools/call", {"name": "echo", "arguments": {"text": "here"}})
            headers = {**rpc.modern(), "mcp-name": "echo"}
            refused = await http.post(cwm.url, json=call, headers=headers)
            assert refused.status_code == HTTPStatus.UNAUTHORIZED
            answered = await http.post(cwm.url, json=call, headers={**headers, **credentials})
            assert answered.json()["result"]["structuredContent"] == {"text": "here"}
            with redis.Redis.from_url(redis_url) as store:
                counted = [key for key in store.scan_iter() if b":limit" in key]
            assert len(counted) == len(("principal", "tenant")) * len(("minute", "hour"))
        # A gateway that ends has sent its traces.
        assert (await http.get(f"{collector.origin}/taken")).json() > 0
