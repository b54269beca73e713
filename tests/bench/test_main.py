"""``cwm bench main``: its parts one after the other, what it says beforehand, and what stands when it ends early."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cwm_bench.harness.figures import Report, Section
from cwm_bench.harness.schedule import Schedule, duration, in_order
from cwm_bench.main import records
from cwm_bench.main.estimate import Speed, estimates
from cwm_bench.main.parts import THOROUGH, Part, Repetitions

# Of the slower of the machines that this is meant for: two cores, 25 s for 8,032 tokens.
SLOW = Speed(1.2, 11.3, {(1, False): 1.1, (1, True): 0.9, (16, False): 5.5, (16, True): 3.0})


def work(part: Part) -> Callable[[], Awaitable[tuple[Section, dict[str, Any]]]]:
    async def measured() -> tuple[Section, dict[str, Any]]:
        return Section(f"table of {part}", ("figure",), [(1,)]), {f"{part}_ms": 1}

    return measured


async def broken() -> tuple[Section, dict[str, Any]]:
    raise RuntimeError("the engine ended")


def schedule(
    *parts: Part, publish: Callable[[Report], None] = lambda _: None
) -> tuple[Schedule[Part], list[str]]:
    lines: list[str] = []
    made: Schedule[Part] = Schedule(Report("main", {"parts": []}), {}, lines.append, publish)
    made.expect(dict.fromkeys(parts, 90.0))
    return made, lines


def test_parts_have_one_order_whatever_order_they_are_asked_for_in() -> None:
    assert in_order(Part, [Part.LISTS, Part.FREEZE, Part.LISTS]) == [Part.FREEZE, Part.LISTS]
    assert in_order(Part, []) == list(Part)


async def test_a_run_says_beforehand_how_long_it_takes_and_meanwhile_how_long_is_to_go() -> None:
    planned, lines = schedule(Part.FREEZE, Part.LISTS)
    assert lines == ["this takes about 3 min 0 s: freeze 1 min 30 s, lists 1 min 30 s"]
    await planned.measure(Part.FREEZE, work(Part.FREEZE))
    assert lines[1:] == [
        "freeze: about 1 min 30 s of about 3 min 0 s",
        "freeze took 0 s; about 1 min 30 s to go",
    ]


async def test_a_part_that_was_not_selected_is_not_measured() -> None:
    planned, _ = schedule(Part.LISTS)
    await planned.measure(Part.FREEZE, broken)
    await planned.measure(Part.LISTS, work(Part.LISTS))
    assert planned.report.summary == {"lists_ms": 1}
    assert planned.report.context["parts"] == ["lists"]


async def test_the_report_is_published_after_each_part_and_keeps_them_when_the_next_fails(
    tmp_path: Path,
) -> None:
    path = tmp_path / "main.json"
    planned, _ = schedule(Part.FREEZE, Part.THAW, publish=lambda report: report.write(path))
    await planned.measure(Part.FREEZE, work(Part.FREEZE))
    with pytest.raises(RuntimeError):
        await planned.measure(Part.THAW, broken)
    document = json.loads(path.read_text())
    assert [section["title"] for section in document["sections"]] == ["table of freeze"]
    assert (document["summary"], document["context"]) == ({"freeze_ms": 1}, {"parts": ["freeze"]})


def test_a_file_that_cannot_be_written_anew_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "main.json"
    Report("main", {"parts": []}).write(path)
    before = path.read_text()
    with pytest.raises(TypeError):
        Report("main", {"parts": object()}).write(path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


def test_by_default_everything_takes_less_than_twenty_minutes_on_two_slow_cores() -> None:
    usual = sum(estimates(list(Part), Repetitions(), SLOW).values())
    assert usual < 17 * 60  # the engine starts and shows its speed before, in two minutes
    assert sum(estimates(list(Part), THOROUGH, SLOW).values()) > 2 * usual


def test_an_estimate_is_of_the_selected_parts() -> None:
    assert estimates([Part.THAW, Part.START], Repetitions(), SLOW).keys() == {Part.THAW, Part.START}


def test_a_prefill_is_estimated_from_a_short_and_a_long_one() -> None:
    assert SLOW.prefill(512) == pytest.approx(1.2)
    assert SLOW.prefill(4096) == pytest.approx(11.3)
    assert 24 < SLOW.prefill(8032) < 27


def test_a_duration_is_in_minutes_and_seconds() -> None:
    assert [duration(seconds) for seconds in (0.4, 59.6, 754)] == ["0 s", "1 min 0 s", "12 min 34 s"]


def test_the_repetitions_of_a_pass_through_are_rounds_or_requests_whichever_are_more() -> None:
    repetitions = Repetitions(rounds=5, requests=40)
    assert (repetitions.rounds_of(1), repetitions.rounds_of(16)) == (40, 5)


async def test_lists_are_timed_on_each_database(tmp_path: Path) -> None:
    section, summary = await records.lists({"sqlite": records.sqlite_url(tmp_path)}, windows=400)
    assert section.columns == ("query", "sqlite ms")
    assert len(section.rows) == 5
    assert summary.keys() == {"window_list_ms_sqlite"}
    assert summary["window_list_ms_sqlite"] == max(ms for _, ms in section.rows[:-1]) > 0
