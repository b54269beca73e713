"""What a thaw leaves in the metrics."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.domain.canary import Evidence, Verification
from cwm.domain.planner import Plan
from cwm.services.windows.receipt import Receipt
from cwm.services.windows.thaw import Thaw

LOADED = Receipt(
    tokens_restored=256,
    tokens_recomputed=7,
    tokens_by_tier={"redis": 192, "gpu": 64},
    blocks_found=4,
    blocks_total=4,
    prefetch_ms=20.0,
    engine_ms=100.0,
    plan=cast("Plan", None),
    evidence=Evidence(Verification.EXACT, 16),
    verify_ms=40.0,
)


def counted(receipt: Receipt) -> dict[tuple[str, ...], float]:
    meter = PrometheusMeter()
    Thaw._count(cast("Thaw", SimpleNamespace(meter=meter)), receipt)
    return {(s.name, *s.labels.values()): s.value for s in meter.samples(buckets=False) if s.value}


def test_a_thaw_tells_where_its_tokens_came_from_how_long_each_phase_took_and_what_was_proven() -> None:
    told = counted(LOADED)
    assert {key[1]: value for key, value in told.items() if key[0] == "cwm_prompt_tokens_total"} == {
        "redis": 192,
        "gpu": 64,
        "computed": 7,
    }
    assert {key[1]: value for key, value in told.items() if key[0] == "cwm_thaw_phase_seconds_sum"} == {
        "prefetch": 0.02,
        "engine": 0.1,
        "verify": 0.04,
    }
    assert told["cwm_verifications_total", "exact"] == 1


def test_a_phase_that_did_not_happen_is_not_timed() -> None:
    skipped = replace(LOADED, prefetch_ms=0.0, evidence=Evidence(Verification.SKIPPED), verify_ms=0.01)
    told = counted(skipped)
    assert [key[1] for key in told if key[0] == "cwm_thaw_phase_seconds_count"] == ["engine"]
    assert told["cwm_verifications_total", "skipped"] == 1
