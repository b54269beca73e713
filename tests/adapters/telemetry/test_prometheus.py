"""One registry, told as Prometheus' text and as values."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.ports.meter import Meter, Metrics, Sample


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


def test_percentiles_are_of_the_latest_durations_only(meter: PrometheusMeter) -> None:
    for elapsed in [1_000_000.0] * 10 + [float(n) for n in range(1, 1025)]:
        meter._recent.add("window_freeze", elapsed)
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
        assert len(values) == 65
        assert value(samples, name, **{label: "other"}) == 936
    assert len({s.labels["operation"] for s in samples if s.name == "cwm_operation_total"}) == 65


def test_only_the_instances_named_last_are_told_and_not_too_many(meter: PrometheusMeter) -> None:
    meter.instances({"node0": True, "node1": False})
    meter.instances({"node1": True})
    told = [s for s in meter.samples() if s.name == "cwm_watchdog_healthy"]
    assert [(s.labels, s.value) for s in told] == [({"instance": "node1"}, 1.0)]
    meter.instances({f"node{number}": False for number in range(1000)})
    assert len([s for s in meter.samples() if s.name == "cwm_watchdog_healthy"]) == 64


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


def test_the_process_tells_its_memory(meter: PrometheusMeter) -> None:
    assert value(meter.samples(), "process_resident_memory_bytes") > 10_000_000


def test_meters_share_nothing_with_each_other_or_the_librarys_own_registry(meter: PrometheusMeter) -> None:
    PrometheusMeter().event("elsewhere")
    assert "elsewhere" not in meter.text()
    assert not [name for name in REGISTRY._names_to_collectors if name.startswith("cwm_")]
