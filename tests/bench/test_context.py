"""``cwm bench context`` measures what it says, on servers of its own."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from cwm_bench.context import pages as context_pages
from cwm_bench.context import results as context_results
from cwm_bench.context import run as context
from cwm_bench.context import store as context_store
from cwm_bench.context.results import Sizes
from cwm_bench.context.sharing import Workload
from cwm_bench.context.store import SQLITE
from cwm_bench.harness import captured, reference_servers, responses, servers
from cwm_bench.harness.reference_servers import ReferenceServers
from tests.node.programs import Programs, environment

TINY = context.ContextRun(
    operations=20,
    megabytes=1,
    filled_megabytes=2,
    rounds=1,
    cursors=100,
    estimated_chars=(270_000,),
    estimates=1,
    load=Workload(agents=2, reads=6, files=4),
    sizes=Sizes(kilobytes=60, entries=900, reloads=2),
)
PROMISED = {
    "estimate_error_p95",
    "estimate_ms_100kb",
    "tokens_saved",
    "byte_exact",
    "hit_rate",
    "dedupe_saving",
    "recovery_s",
    "reference_results",
}


@pytest.mark.parametrize("name", responses.RESPONSES)
def test_a_generated_answer_is_as_large_as_asked_for_and_the_same_each_time(name: str) -> None:
    make = responses.RESPONSES[name]
    answer = make(60)
    assert answer == make(60)
    text = answer if isinstance(answer, str) else json.dumps(answer)
    assert 60_000 <= len(text.encode()) < 80_000
    assert json.loads(text)


@pytest.mark.parametrize("name", captured.NAMES)
def test_a_captured_answer_is_a_large_json_document(name: str) -> None:
    answer = captured.answer(name)
    assert len(answer.encode()) >= 200_000
    assert isinstance(json.loads(answer), dict)


def test_cursors_are_made_and_checked() -> None:
    figures = {figure.key: figure.measured for figure in context_pages.cursors(100)}
    assert figures["cursor_bytes"] == 120
    assert all(value > 0 for value in figures.values())


@pytest.mark.slow
async def test_operations_and_pages_are_timed_one_by_one(tmp_path: Path) -> None:
    taken = await context_store.operations(tmp_path / "a", SQLITE, 20)
    assert {what: len(each.milliseconds) for what, each in taken.items()} == {"set": 20, "get": 20, "list": 5}
    assert all(len(each.cpu) == len(each.milliseconds) for each in taken.values())
    assert len(await context_pages.pages(tmp_path / "b", SQLITE, 1)) > 10


@pytest.mark.slow
async def test_contents_of_more_than_a_budget_of_100_mb_take_less_than_100_mb_in_all(tmp_path: Path) -> None:
    usage = await servers.json_output("cwm_bench.context.store", "fill", str(tmp_path), SQLITE, "150")
    assert (usage["budget_mb"], usage["counted_mb"]) == (100, pytest.approx(90, abs=1))
    assert usage["rss_peak_mb"] < 100


@pytest.mark.slow
async def test_what_one_process_kept_is_read_by_another(tmp_path: Path) -> None:
    assert (await context_store.fill(tmp_path / "a", SQLITE, 1))["counted_mb"] > 1
    assert (await context_store.checkpoint(tmp_path / "b", SQLITE, 1))["restore_s"] > 0
    back = await context_store.recover(tmp_path / "b", SQLITE, 1)
    assert back["wrong"] == 0
    assert back["megabytes"] == pytest.approx(1, rel=0.2)


@pytest.mark.slow
async def test_recovery_is_held_against_its_goal_beside_what_it_takes_with_the_start_of_a_process(
    tmp_path: Path,
) -> None:
    async with servers.valkey(tmp_path) as valkey:
        figures = await context._recovery(tmp_path, {SQLITE: SQLITE, "redis": valkey}, TINY)
    told = {figure.key: figure for figure in figures}
    assert str(told["recovery_s"].goal) == str(told["checkpoint_sqlite_s"].goal) == "< 2"
    assert told["recovery_s"].measured == max(
        told[f"recovery_{name}_s"].measured for name in (SQLITE, "redis")
    )
    assert 0 < told["recovery_s"].measured < told["recovery_with_start_s"].measured
    assert told["recovered_wrong"].measured == 0


def test_the_reference_servers_are_those_of_the_tests() -> None:
    pinned = json.loads((Path(__file__).parents[1] / "node" / "package.json").read_text())["dependencies"]
    assert reference_servers.PACKAGES.items() <= pinned.items()


def _as_tests_have_them(programs: Programs, folder: Path) -> ReferenceServers:
    folder.mkdir()
    return ReferenceServers(programs.folder)


@pytest.mark.slow
async def test_results_of_the_reference_servers_are_measured_in_both_eras(
    tmp_path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", environment()["PATH"])
    monkeypatch.setattr(reference_servers, "installed", partial(_as_tests_have_them, programs))
    table, figures, _ = await context_results.measure(tmp_path, TINY.sizes, lambda _: None)
    told = {figure.key: figure.measured for figure in figures}
    rows = [row for row in table.rows if row[0].startswith("server-")]
    assert {tuple(row[0].split(", ")[0].split()[:2]) for row in rows} == {
        ("server-filesystem", "read_text_file"),
        ("server-filesystem", "list_directory"),
        ("server-everything", "echo"),
    }
    assert told["reference_results"] == len(rows) == 12
    assert told["byte_exact"] == 1
    assert {row[6] for row in rows} == {"yes"}
    assert all(len(row) == len(table.columns) for row in table.rows)


@pytest.mark.slow
async def test_without_npm_a_row_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    table, figures, _ = await context_results.measure(tmp_path, TINY.sizes, lambda _: None)
    assert table.rows[-1][0] == "server-filesystem, server-everything: npm is not there."
    assert len(table.rows[-1]) == len(table.columns)
    told = {figure.key: figure for figure in figures}
    assert told["reference_results"].row()[-1] == "no"


@pytest.mark.slow
async def test_every_promised_figure_is_measured(
    tmp_path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", environment()["PATH"])
    monkeypatch.setattr(reference_servers, "installed", partial(_as_tests_have_them, programs))
    told: list[str] = []
    report = await context.run(told.append, TINY, tmp_path)
    assert report.summary.keys() >= PROMISED
    assert report.summary["byte_exact"] == 1
    assert report.summary["stale_answers"] == report.summary["recovered_wrong"] == 0
    assert report.summary["upstream_calls"] <= 4
    assert 0 < report.summary["tokens_saved"] < 1
    assert 0 < report.summary["dedupe_saving"] < 1
    assert all(len(row) == len(section.columns) for section in report.sections for row in section.rows)
    assert told[-1] == "token counts"
