"""What turns cost and saved, on the overview."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cwm.domain.turn_sums import TurnSum, hour_of
from tests.transport.console.reading import Console


async def test_the_overview_sums_today_and_seven_days_of_all_gateways(console: Console) -> None:
    sums = console.parts.engine_side.turn_sums
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    await sums.records.add_turn_sums_of_every_tenant(
        {
            ("default", midnight): TurnSum(2, 3000, 2000, 1000, 500),
            ("default", midnight - timedelta(days=6)): TurnSum(1, 7000, 0),
            ("default", midnight - timedelta(days=7)): TurnSum(1, 10**9, 0),
            ("acme", midnight): TurnSum(1, 10**9, 0),
        },
        midnight - timedelta(days=9),
    )
    page = await console.page()
    assert "2,000 reused, 1,000 computed in 2 turns; about 1 s saved (estimated)" in page.text
    assert "2,000 reused, 8,000 computed in 3 turns" in page.text
    today, week = (each.attributes["aria-label"] for each in page.all("svg", class_="chart"))
    assert today == "Prompt tokens by hour. 00:00: 2,000 reused, 1,000 computed."
    assert f"{midnight - timedelta(days=6):%a %d %b}: 0 reused, 7,000 computed" in week


async def test_what_was_counted_is_there_after_a_restart(console: Console) -> None:
    console.parts.engine_side.reuse.turn("default", 1000, 0, 400)
    sums = console.parts.engine_side.turn_sums
    await sums.settle()
    hour = hour_of(datetime.now(UTC))
    written = await sums.records.turn_sums("default", hour - timedelta(hours=1))
    assert [*written.values()] == [TurnSum(1, 1000, 0, 1000, 400)]
