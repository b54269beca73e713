"""Which texts the engine is asked about, and what follows from its answer, over HTTP with a vLLM that misbehaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import cast

import pytest

from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.adapters.vllm.client import VllmEngine
from cwm.domain.errors import EngineConnectionError
from cwm.domain.prefix import TokenIds
from cwm.ports.engine import Engine, ServedModel
from cwm.services.results import token_drift
from cwm.services.results.token_drift import TokenDrift
from cwm.settings import Engine as EngineSettings
from tests.adapters.vllm.fake_vllm import FakeVllm, fake_vllm

TEXT = "what an upstream returned"


@dataclass
class SlowEngine:
    """Answers when told to, with a token for each character; or never, or not in a coded way."""

    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[str] = field(default_factory=list)
    failure: Exception | None = None
    serves: bool = True

    async def models(self) -> list[ServedModel]:
        return [ServedModel("m", "/m", 64)] if self.serves else []

    async def tokenize(self, model: str, text: str, *, add_special_tokens: bool) -> TokenIds:
        assert (model, add_special_tokens) == ("m", False)
        self.asked.append(text)
        await self.go_on.wait()
        if self.failure is not None:
            raise self.failure
        return tuple(range(len(text)))


@pytest.fixture
def meter() -> PrometheusMeter:
    return PrometheusMeter()


@pytest.fixture
async def vllm() -> AsyncIterator[FakeVllm]:
    async with fake_vllm() as fake:
        yield fake


def of(engine: SlowEngine, meter: PrometheusMeter, share: float = 1.0) -> TokenDrift:
    return TokenDrift(cast("Engine", engine), meter, share)


def told(meter: PrometheusMeter) -> dict[str, float]:
    """Sums of the drift, and events by name that there were."""
    sums = {s.labels["by"]: s.value for s in meter.samples() if s.name == "cwm_sampled_tokens_total"}
    events = (s for s in meter.samples() if s.name == "cwm_events_total" and s.value)
    return sums | {s.labels["event"]: s.value for s in events}


async def test_the_engines_own_count_is_noted_beside_ours(meter: PrometheusMeter, vllm: FakeVllm) -> None:
    engine = VllmEngine(EngineSettings(vllm_url=vllm.url))
    served = await engine.tokenize((await engine.models())[0].id, TEXT, add_special_tokens=False)
    drift = TokenDrift(engine, meter, 1.0)
    drift.delivered(TEXT, 24)
    await drift.settle()
    await engine.aclose()
    assert told(meter) == {"counted": 24, "served": len(served)}


async def test_a_difference_of_over_thirty_percent_is_counted_and_logged_once_a_minute(
    meter: PrometheusMeter, caplog: pytest.LogCaptureFixture
) -> None:
    engine = SlowEngine()
    engine.go_on.set()
    drift = of(engine, meter)
    for counted in (10, 8, 14, 15, 7, 6):
        drift.delivered("ten digits", counted)
        await drift.settle()
    assert told(meter)["token_drift_large"] == 3
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("a text counted as 15 tokens has 10 in the vocabulary of m")


async def test_about_the_share_of_texts_is_asked_for_and_always_the_same_ones(
    meter: PrometheusMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_drift, "_MOST_AT_ONCE", 10_000)
    first, second = SlowEngine(), SlowEngine()
    for engine in (first, second):
        engine.go_on.set()
        drift = of(engine, meter, 0.01)
        for number in range(10_000):
            drift.delivered(f"result {number}", 3)
        await drift.settle()
    assert 50 < len(first.asked) < 200
    assert first.asked == second.asked


async def test_a_share_of_nothing_asks_nothing(meter: PrometheusMeter) -> None:
    engine = SlowEngine()
    drift = of(engine, meter, 0.0)
    for number in range(1_000):
        drift.delivered(f"result {number}", 3)
    await drift.settle()
    assert engine.asked == []


async def test_no_more_than_two_are_asked_at_once(meter: PrometheusMeter) -> None:
    engine = SlowEngine()
    drift = of(engine, meter)
    for number in range(5):
        drift.delivered(f"result {number}", 3)
    engine.go_on.set()
    await drift.settle()
    assert engine.asked == ["result 0", "result 1"]
    assert told(meter)["token_drift_skipped"] == 3
    drift.delivered("result 5", 3)
    await drift.settle()
    assert engine.asked[2:] == ["result 5"]


@pytest.mark.parametrize(("text", "counted"), [("", 0), ("a" * 200_001, 25_001)], ids=["nothing", "too long"])
async def test_what_tells_nothing_or_takes_long_is_not_asked_about(
    meter: PrometheusMeter, text: str, counted: int
) -> None:
    engine = SlowEngine()
    of(engine, meter).delivered(text, counted)
    assert engine.asked == []


async def test_half_a_character_does_not_stop_it(meter: PrometheusMeter) -> None:
    engine = SlowEngine()
    engine.go_on.set()
    drift = of(engine, meter)
    drift.delivered("a \ud83d b", 5)
    await drift.settle()
    assert told(meter)["served"] == 5


@pytest.mark.parametrize("how", ["down", "serves nothing", "slow"])
async def test_an_engine_that_does_not_answer_is_an_event(
    meter: PrometheusMeter, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_drift, "_ANSWERED_WITHIN_SECONDS", 0.01 if how == "slow" else 30)
    engine = SlowEngine(serves=how != "serves nothing")
    if how == "down":
        engine.failure = EngineConnectionError("vLLM does not answer.")
        engine.go_on.set()
    drift = of(engine, meter)
    drift.delivered(TEXT, 5)
    await drift.settle()
    assert told(meter) == {"token_drift_unanswered": 1}


async def test_a_fault_of_ours_is_logged_and_goes_no_further(
    meter: PrometheusMeter, caplog: pytest.LogCaptureFixture
) -> None:
    engine = SlowEngine(failure=RuntimeError("a bug"))
    engine.go_on.set()
    drift = of(engine, meter)
    drift.delivered(TEXT, 5)
    await drift.settle()
    assert "could not be asked" in caplog.text


async def test_closing_waits_for_nobody(meter: PrometheusMeter) -> None:
    engine = SlowEngine()
    drift = of(engine, meter)
    drift.delivered(TEXT, 5)
    await drift.aclose()
    assert told(meter) == {}
