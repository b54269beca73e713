"""A gateway that runs takes a changed ``cwm.yaml`` over."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport

from tests.cli.command import cwm, environment
from tests.eventually import eventually
from tests.transport.mcp.upstream_hosts import hosted

pytestmark = pytest.mark.slow


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, Iterator[dict[str, Any]]]]:
    """The URL of a gateway that reads ``cwm.yaml`` in ``folder``, and what it logs."""
    with subprocess.Popen(
        [sys.executable, "-m", "cwm", "serve", "--port", "0"],
        cwd=folder,
        env=environment(folder, {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            url = process.stdout.readline().split()[3]
            yield url, (json.loads(line) for line in iter(process.stderr.readline, ""))
        finally:
            process.terminate()


def applied_of(log: Iterator[dict[str, Any]]) -> list[str]:
    """What the next change that is taken over has changed."""
    return list(next(entry for entry in log if entry["event"] == "settings_applied")["changed"])


def test_each_change_is_told_counted_and_kept_apart_from_what_needs_a_restart(tmp_path: Path) -> None:
    config = tmp_path / "cwm.yaml"
    with serving(tmp_path) as (url, log):
        config.write_text("upstreams: {docs: {command: x, args: [--api-key=hunter2]}}\nhttp: {port: 9}\n")
        applied = applied_of(log)
        waits = next(entry for entry in log if entry["event"] == "settings_changed")
        config.write_text("upstreams: {docs: {}}\n")
        refused = next(entry for entry in log if entry["event"] == "settings_refused")
        metrics = httpx2.get(url.removesuffix("/mcp") + "/metrics", trust_env=False).text

    assert applied == ["upstreams.docs"]
    assert waits["settings"] == ["http.port"]
    assert refused["why"].startswith(f"upstreams.docs in {config}: ")
    assert 'cwm_events_total{event="config_reload_applied"} 1.0' in metrics
    listed = cwm(tmp_path, "audit", "list", "--event", "settings.change", "--json").stdout
    audited = {event["outcome"]: event["details"] for event in json.loads(listed)["records"]}
    assert audited["waits"] == {"http.port": {"before": "8700", "after": "9"}}
    assert audited["applied"]["upstreams.docs"]["before"] == ""
    assert "command=('x', '--api-key=[hidden]')" in audited["applied"]["upstreams.docs"]["after"]
    assert 'cwm_events_total{event="config_reload_refused"} 1.0' in metrics


async def test_a_new_policy_holds_for_the_next_call(tmp_path: Path) -> None:
    config = tmp_path / "cwm.yaml"
    with serving(tmp_path) as (url, log):
        async with Client(StreamableHttpTransport(url)) as client:
            before = await client.call_tool_mcp("get_metrics_data", {})
            config.write_text("tools: {get_metrics_data: {max_tokens: 500}}\n")
            applied = applied_of(log)
            after = await client.call_tool_mcp("get_metrics_data", {})

    assert applied == ["tools.get_metrics_data"]
    assert "dev.cwm/result" not in (before.meta or {})
    assert after.meta is not None
    assert after.meta["dev.cwm/result"]["delivered_tokens"] <= 500


async def test_a_new_limit_holds_for_the_next_call_and_its_end_as_well(tmp_path: Path) -> None:
    config = tmp_path / "cwm.yaml"
    with serving(tmp_path) as (url, log):
        async with Client(StreamableHttpTransport(url)) as client:

            async def is_refused() -> bool:
                return bool((await client.call_tool_mcp("session_list", {})).is_error)

            assert not await is_refused()
            config.write_text("limits: {rate_limit_principal: 1/minute}\n")
            applied = applied_of(log)
            assert [await is_refused() for _ in range(3)] == [False, True, True]
            config.write_text("limits: {}\n")
            applied += applied_of(log)
            assert not await is_refused()

    assert applied == ["limits.rate_limit_principal"] * 2


def upstreams_at(**urls: str) -> str:
    return json.dumps({"upstreams": {name: {"url": url} for name, url in urls.items()}})


@pytest.mark.parametrize("by_rename", [True, False])
async def test_upstreams_come_and_go_with_the_file_and_no_call_that_is_under_way_is_dropped(
    tmp_path: Path, *, by_rename: bool
) -> None:
    """Of one that goes, one that moves, and one that stays; all are under way while the file changes."""
    config = tmp_path / "cwm.yaml"

    def save(text: str) -> None:
        draft = tmp_path / "draft" if by_rename else config
        draft.write_text(text)
        draft.replace(config)

    async with hosted(legacy=True) as one, hosted(legacy=True) as other:
        save(upstreams_at(goes=one.url, moves=one.url, stays=one.url))
        with serving(tmp_path) as (url, log):
            async with Client(StreamableHttpTransport(url)) as client:

                async def offered() -> set[str]:
                    return {
                        tool.name.partition("_hold")[0]
                        for tool in await client.list_tools()
                        if "_hold" in tool.name
                    }

                assert await offered() == {"goes", "moves", "stays"}
                calls = [
                    asyncio.create_task(client.call_tool_mcp(f"{name}_hold", {}))
                    for name in ("goes", "moves", "stays") * 5
                ]
                await eventually(lambda: one.seen.calls["hold"] == 15)
                save(upstreams_at(moves=other.url, stays=one.url, comes=other.url))
                applied = await asyncio.to_thread(applied_of, log)
                assert await offered() - {"moves"} == {"stays", "comes"}
                assert (await client.call_tool("comes_echo", {"message": "hi"})).data == "hi"
                assert not any(call.done() for call in calls)
                one.seen.go_on.set()
                answers = await asyncio.gather(*calls)

    assert applied == ["upstreams.comes", "upstreams.goes", "upstreams.moves"]
    assert [(answer.is_error, answer.content[0].text) for answer in answers] == [(False, "held")] * 15
    assert one.seen.calls["hold"] == 15
