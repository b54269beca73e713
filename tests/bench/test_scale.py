"""``cwm bench scale`` fills both databases as their adapters would, and measures what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from cwm.adapters.sql.database import open_database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.sql.tables.windows import windows
from cwm.domain.principal import Principal
from cwm.domain.window import WindowQuery
from cwm_bench.scale import fill as scale_fill
from cwm_bench.scale import lists as scale_lists
from cwm_bench.scale import rows as scale_rows
from cwm_bench.scale import run as scale
from cwm_bench.scale.run import ScaleRun

PROMISED = {"windows", "worst_median_ms", "worst_turn_median_ms", "errors", "p99_ms"}


def test_windows_are_as_many_as_asked_for_and_the_same_each_time() -> None:
    def made() -> list[str]:
        return [row["name"] for batch in scale_rows.batches(250) for row in batch.rows[windows]]

    assert len(made()) == len(set(made())) == 250
    assert made() == made()


@pytest.mark.slow
async def test_what_is_filled_in_is_found_as_what_gateways_write(empty_database_url: str) -> None:
    await scale_fill.fill(empty_database_url, 2_000, lambda _line: None)
    database = open_database(empty_database_url)
    try:
        registry = SqlRegistry(database)
        every = await registry.windows(scale_rows.TENANT, WindowQuery(limit=100))
        assert every.total == 1_800
        for case in scale_lists.cases(2_000):
            found = await registry.windows(scale_rows.TENANT, case.query)
            assert found.total_exact, case.name
            assert bool(found.windows) == (case.name not in {"tag of none", "search: nothing"}) or (
                found.total <= case.query.offset
            ), case.name
        session = await registry.session(scale_rows.TENANT, scale_rows.session_id_of(1))
        current = await registry.current_turn(scale_rows.TENANT, scale_rows.session_id_of(1))
        assert session is not None
        assert current is not None
        assert current.number == scale_rows.WINDOWS_A_SESSION
        assert len(await registry.turn_tokens(current)) == session.token_count
        assert len(await registry.turn_messages(current)) == 2 * scale_rows.WINDOWS_A_SESSION
        name = every.windows[0].name
        await registry.remove_window(every.windows[0], every.windows[0].created_at)
        assert (await registry.windows(scale_rows.TENANT, WindowQuery(search=name))).total == 0
        assert (await registry.windows(scale_rows.TENANT, WindowQuery())).total == 1_799
    finally:
        await database.dispose()


@pytest.mark.slow
async def test_every_promised_figure_is_measured(tmp_path: Path) -> None:
    told: list[str] = []
    report = await scale.run(
        told.append, ScaleRun(1_000, minutes=0.05, rounds=5, plans=True, calls_per_second=20), tmp_path
    )
    assert report.summary.keys() >= PROMISED
    assert report.summary["windows"] == 1_000
    assert report.summary["errors"] == 0, report.sections[-1].rows
    assert report.summary["p99_ms"] > 0
    assert all(len(row) == len(section.columns) for section in report.sections for row in section.rows)
    assert [section.title.partition(",")[0] for section in report.sections[1:3]] == ["plans", "plans"]


def test_the_asking_tenant_has_most_of_all() -> None:
    tenants = [scale_rows.tenant_of(session) for session in range(100)]
    assert tenants.count(Principal(scale_rows.TENANT, "agent").tenant) == 90
