"""A collector that is away, slow or picky is no concern of those who ask the gateway."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from tests.traces.gateway import arrived, caller, traced_gateway
from tests.traces.sink import Sink
from tests.transport.mcp.gateway import nobody_listens, sdk_agent

pytestmark = pytest.mark.slow

MODERN = "2026-07-28"
PATIENCE_SECONDS = 20


async def test_spans_are_sent_while_the_gateway_runs(tmp_path: Path, collector: Sink) -> None:
    async with traced_gateway(tmp_path, collector) as url, sdk_agent(url, MODERN) as agent:
        await agent.call("window_list")
        await arrived(collector, lambda: "tools/call window_list" in collector.names())


@pytest.mark.parametrize(("ratio", "sampled", "kept"), [(0, True, True), (1, False, False), (0, None, False)])
async def test_the_callers_choice_counts_before_the_ratio(
    tmp_path: Path, collector: Sink, ratio: float, sampled: bool | None, kept: bool
) -> None:
    async with (
        traced_gateway(tmp_path, collector, trace_sample_ratio=ratio) as url,
        sdk_agent(url, MODERN) as agent,
    ):
        if sampled is None:
            await agent.call("window_list")
        else:
            with caller(sampled=sampled).calling():
                await agent.call("window_list")
    assert ("tools/call window_list" in collector.names()) is kept


async def test_a_ratio_keeps_about_that_share(tmp_path: Path, collector: Sink) -> None:
    async with (
        traced_gateway(tmp_path, collector, trace_sample_ratio=0.5) as url,
        sdk_agent(url, MODERN) as agent,
    ):
        for _ in range(60):
            await agent.call("window_list")
    kept = collector.names().count("tools/call window_list")
    assert 10 <= kept <= 50
    assert all(
        collector.below(span) for span in collector.spans if span.kind == "server" and "call" in span.name
    )


async def test_a_collector_that_is_away_is_told_once(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as told, nobody_listens() as away:
        async with (
            traced_gateway(tmp_path, None, otlp_endpoint=away) as url,
            sdk_agent(url, MODERN) as agent,
        ):
            for _ in range(5):
                assert not (await agent.call("window_list")).is_error
    events = [line["event"] for line in told if line["event"].startswith("traces")]
    assert events
    assert len(events) == len(set(events))


async def test_a_collector_that_never_answers_keeps_nobody_waiting(tmp_path: Path, collector: Sink) -> None:
    collector.go_on.clear()
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with traced_gateway(tmp_path, collector) as url, sdk_agent(url, MODERN) as agent:
            await agent.call("window_list")
            await arrived(collector, lambda: bool(collector.raw))
            # Its first batch is being held back.
            assert not (await agent.call("window_list")).is_error
    assert not collector.go_on.is_set()


async def test_what_a_collector_refuses_is_lost_and_told_when_it_takes_the_next(
    tmp_path: Path, collector: Sink
) -> None:
    collector.status = 400
    with structlog.testing.capture_logs() as told:
        async with traced_gateway(tmp_path, collector) as url, sdk_agent(url, MODERN) as agent:
            await agent.call("window_list")
            await arrived(collector, lambda: bool(collector.raw))
            collector.status = 200
            await agent.call("context_list")
            await arrived(collector, lambda: "tools/call context_list" in collector.names())
    events = [line["event"] for line in told if line["event"].startswith("traces")]
    assert events == ["traces_not_exported", "traces_exported_again"]


def test_without_a_collector_nothing_of_the_sdk_is_loaded(tmp_path: Path) -> None:
    program = """
import sys
from cwm.app import create_app
from cwm.settings import load
create_app(load({"CWM_DB_PATH": sys.argv[1], "CWM_SECRET_FILE": sys.argv[2]}))
print([name for name in ("opentelemetry.sdk", "opentelemetry.exporter", "google.protobuf") if name in sys.modules])
"""
    arguments = [str(tmp_path / "cwm.db"), str(tmp_path / "secret")]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
