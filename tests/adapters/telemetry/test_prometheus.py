"""One registry, told as Prometheus' text and as values."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.domain.engine import Tier
from cwm.ports.kv_tier import TierUsage
from cwm.ports.meter import MemoryUse, Meter, Metrics, Sample, Standing


@pytest.fixture
def meter() -> PrometheusMeter:
    return PrometheusMeter()


def value(samples: list[Sample], name: str, **labels: str) -> float:
    (found,) = [s.value for s in samples if s.name == name and dict(s.labels) == labels]
    return found


def test_it_is_a_meter_and_tells_metrics(meter: PrometheusMeter) -> None:
    counts: Meter = meter
    tells: Metrics = meter
    counts.event("started")
    assert value(tells.samples(), "cwm_events_total", event="started") == 1


def test_an_operation_is_counted_by_how_it_ended(meter: PrometheusMeter) -> None:
    for _ in range(3):
        with meter.operation("window_freeze"):
            pass
    with pytest.raises(KeyError), meter.operation("window_freeze"):
        raise KeyError
    samples = meter.samples()
    assert value(samples, "cwm_operation_total", operation="window_freeze", status="success") == 3
    assert value(samples, "cwm_operation_total", operation="window_freeze", status="error") == 1
    assert value(samples, "cwm_operation_duration_ms_count", operation="window_freeze") == 4


async def test_a_cancelled_operation_ended_in_error(meter: PrometheusMeter) -> None:
    begun = asyncio.Event()

    async def work() -> None:
        with meter.operation("window_thaw"):
            begun.set()
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    await asyncio.wait({task})
    assert value(meter.samples(), "cwm_operation_total", operation="window_thaw", status="error") == 1


def test_drift_is_told_by_text_and_by_token(meter: PrometheusMeter) -> None:
    meter.drift(100, 104)
    meter.drift(1_000, 1_300)
    samples = meter.samples()
    assert value(samples, "cwm_token_drift_count") == 2
    assert value(samples, "cwm_token_drift_bucket", le="1.05") == 1
    assert value(samples, "cwm_sampled_tokens_total", by="counted") == 1_100
    assert value(samples, "cwm_sampled_tokens_total", by="served") == 1_404


def test_durations_are_milliseconds(meter: PrometheusMeter, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.25])
    by_hand = SimpleNamespace(perf_counter=lambda: next(clock))
    monkeypatch.setattr("cwm.adapters.telemetry.prometheus.time", by_hand)
    with meter.operation("window_freeze"):
        pass
    samples = meter.samples()
    assert value(samples, "cwm_operation_duration_ms_sum", operation="window_freeze") == 250
    assert value(samples, "cwm_operation_duration_ms_bucket", operation="window_freeze", le="250.0") == 1
    assert value(samples, "cwm_operation_duration_ms_bucket", operation="window_freeze", le="100.0") == 0


def test_percentiles_are_of_the_latest_durations_only(
    meter: PrometheusMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    durations = [1_000.0] * 10 + [n / 1000 for n in range(1, 1025)]
    clock = iter([seconds for duration in durations for seconds in (0.0, duration)])
    monkeypatch.setattr(
        "cwm.adapters.telemetry.prometheus.time", SimpleNamespace(perf_counter=lambda: next(clock))
    )
    for _ in durations:
        with meter.operation("window_freeze"):
            pass
    samples = meter.samples()
    assert value(samples, "cwm_operation_duration_ms_p50", operation="window_freeze") == 512
    assert value(samples, "cwm_operation_duration_ms_p99", operation="window_freeze") == 1014


def test_tokens_are_counted_by_source(meter: PrometheusMeter) -> None:
    meter.tokens("redis", 512)
    meter.tokens("redis", 256)
    meter.tokens("computed", 0)
    samples = meter.samples()
    assert value(samples, "cwm_prompt_tokens_total", source="redis") == 768
    assert value(samples, "cwm_prompt_tokens_total", source="computed") == 0


def test_a_label_takes_so_many_values_and_no_more(meter: PrometheusMeter) -> None:
    for number in range(1000):
        meter.event(f"event_{number}")
        meter.tokens(f"source_{number}", 1)
        with meter.operation(f"operation_{number}"):
            pass
    samples = meter.samples()
    for name, label in (("cwm_events_total", "event"), ("cwm_prompt_tokens_total", "source")):
        values = {s.labels[label] for s in samples if s.name == name}
        assert len(values) == 129
    assert value(samples, "cwm_prompt_tokens_total", source="other") == 872
    assert len({s.labels["operation"] for s in samples if s.name == "cwm_operation_total"}) == 129


def test_only_the_instances_named_last_are_told_and_not_too_many(meter: PrometheusMeter) -> None:
    meter.instances({"node0": True, "node1": False})
    meter.instances({"node1": True})
    told = [s for s in meter.samples() if s.name == "cwm_watchdog_healthy"]
    assert [(s.labels, s.value) for s in told] == [({"instance": "node1"}, 1.0)]
    meter.instances({f"node{number}": False for number in range(1000)})
    assert len([s for s in meter.samples() if s.name == "cwm_watchdog_healthy"]) == 128


def test_the_text_holds_what_the_contract_shows_and_the_same_values(meter: PrometheusMeter) -> None:
    with meter.operation("window_freeze"):
        pass
    meter.event("thaw_without_lmcache")
    text = meter.text()
    assert "# HELP cwm_operation_total Total operations" in text
    assert "# TYPE cwm_operation_total counter" in text
    assert "# TYPE cwm_operation_duration_ms histogram" in text
    assert 'cwm_operation_duration_ms_p50{operation="window_freeze"}' in text
    assert 'cwm_operation_duration_ms_p99{operation="window_freeze"}' in text
    assert "_created" not in text
    told = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.startswith("process_")
    }
    assert told == {
        (s.name, frozenset(s.labels.items())): s.value
        for s in meter.samples()
        if not s.name.startswith("process_")
    }


def test_thaws_are_told_by_phase_and_by_what_their_canary_showed(meter: PrometheusMeter) -> None:
    meter.thaw_phase("prefetch", 30)
    meter.thaw_phase("prefetch", 2_000)
    meter.verified("exact")
    samples = meter.samples()
    assert value(samples, "cwm_thaw_phase_seconds_sum", phase="prefetch") == 2.03
    assert value(samples, "cwm_thaw_phase_seconds_bucket", phase="prefetch", le="0.05") == 1
    assert value(samples, "cwm_verifications_total", outcome="exact") == 1


def test_what_alerts_look_at_begins_at_zero(meter: PrometheusMeter) -> None:
    samples = meter.samples()
    assert value(samples, "cwm_verifications_total", outcome="mismatch") == 0
    assert value(samples, "cwm_events_total", event="thaw_partial") == 0


def test_either_form_can_do_without_buckets(meter: PrometheusMeter) -> None:
    with meter.operation("window_freeze"):
        pass
    assert "_bucket{" in meter.text()
    assert "_bucket{" not in meter.text(buckets=False)
    assert 'cwm_operation_duration_ms_count{operation="window_freeze"} 1.0' in meter.text(buckets=False)
    names = {s.name for s in meter.samples(buckets=False)}
    assert "cwm_operation_duration_ms_sum" in names
    assert not [name for name in names if name.endswith("_bucket")]


def test_requests_are_in_flight_until_they_end(meter: PrometheusMeter) -> None:
    meter.http_begun("openai", "POST /v1/completions")
    meter.http_begun("mcp", "POST /mcp")
    meter.http_ended("mcp", "POST /mcp", "2xx", None)
    samples = meter.samples()
    in_flight = "cwm_http_requests_in_flight"
    assert value(samples, in_flight, face="openai", route="POST /v1/completions") == 1
    assert value(samples, in_flight, face="mcp", route="POST /mcp") == 0
    assert value(samples, "cwm_http_requests_total", face="mcp", route="POST /mcp", status="2xx") == 1
    assert not [s for s in samples if s.name.startswith("cwm_http_request_duration")]


class Known:
    """What there is, by hand."""

    def __init__(self, standing: Standing) -> None:
        self.standing = standing
        self.looks = 0

    def now(self) -> Standing:
        return self.standing

    async def look(self) -> None:
        self.looks += 1

    async def aclose(self) -> None:
        self.looks = 0


async def test_what_there_is_is_told_as_it_is_now_and_what_is_not_known_is_not(
    meter: PrometheusMeter,
) -> None:
    known = Known(
        Standing(
            sessions={"active": 3, "frozen": 0},
            tiers=[TierUsage(Tier.REDIS, 10, 100), TierUsage(Tier.DISK, 7, None)],
            components={"vllm": False, "registry": True},
            upstreams={"docs": True},
            engines={"a": True, "b": False},
            engine_sessions={"a": 5, "b": 0},
            engine_drains={"a": False, "b": True},
            agent_sessions=2,
            context=MemoryUse({"hit": 7, "miss": 1}, 512, 1024),
            database_transactions=21,
            database_connections=20,
        )
    )
    meter.observe(known)
    await meter.look()
    samples = meter.samples()
    assert value(samples, "cwm_sessions", state="active") == 3
    assert value(samples, "cwm_tier_used_bytes", tier="disk") == 7
    assert value(samples, "cwm_component_up", component="vllm") == 0
    assert value(samples, "cwm_upstream_up", upstream="docs") == 1
    assert value(samples, "cwm_engine_up", engine="b") == 0
    assert value(samples, "cwm_engine_sessions", engine="a") == 5
    assert value(samples, "cwm_engine_draining", engine="b") == 1
    assert value(samples, "cwm_database_transactions") == 21
    assert value(samples, "cwm_context_reads_total", outcome="hit") == 7
    assert value(samples, "cwm_context_memory_bytes") == 512
    assert value(samples, "cwm_context_memory_limit_bytes") == 1024
    assert [s.labels for s in samples if s.name == "cwm_tier_capacity_bytes"] == [{"tier": "redis"}]
    assert not [s for s in samples if s.name == "cwm_windows"]
    assert known.looks == 1
    known.standing = Standing()
    assert not [s for s in meter.samples() if s.name == "cwm_sessions"]


def test_every_metric_is_described_whether_or_not_it_has_a_sample(meter: PrometheusMeter) -> None:
    meter.thaw_phase("engine", 1)
    described = {each.name: each for each in meter.described()}
    assert described["cwm_thaw_phase_seconds"].labels == ("phase",)
    assert described["cwm_windows"].labels == ("durability",)
    assert described["cwm_tool_calls_total"].type == "counter"
    told = {s.name for s in meter.samples()}
    for suffix in ("_bucket", "_count", "_sum"):
        told = {
            name.removesuffix(suffix) if name.removesuffix(suffix) in described else name for name in told
        }
    assert told <= described.keys()


def test_the_process_tells_its_memory(meter: PrometheusMeter) -> None:
    assert value(meter.samples(), "process_resident_memory_bytes") > 10_000_000


def test_meters_share_nothing_with_each_other_or_the_librarys_own_registry(meter: PrometheusMeter) -> None:
    PrometheusMeter().event("elsewhere")
    assert "elsewhere" not in meter.text()
    assert not [name for name in REGISTRY._names_to_collectors if name.startswith("cwm_")]
