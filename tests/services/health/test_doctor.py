"""What the doctor finds about clocks, with a registry on a real Postgres and no engine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from cwm.adapters.sql.clock import time_of
from cwm.adapters.sql.database import open_database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.services.health.doctor import Doctor
from cwm.services.health.findings import Finding, FindingStatus
from tests.fakes.engine import FakeEngine
from tests.fakes.kv_tier import FakeKvTier


class OffBy:
    """A clock that is wrong by so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._off = timedelta(seconds=seconds)

    def now(self) -> datetime:
        return datetime.now(UTC) + self._off

    def monotonic(self) -> float:
        return 0.0


async def found_of_clocks(url: str, clock: OffBy) -> list[Finding]:
    database, tier = open_database(url), FakeKvTier(away=True)

    async def schema() -> tuple[bool, str]:
        return True, "reachable"

    engine = FakeEngine(tier, away=True)
    doctor = Doctor(SqlRegistry(database), engine, tier, clock, schema, lambda: time_of(database))
    try:
        examined = await doctor()
    finally:
        await database.dispose()
    return [finding for finding in examined.findings if finding.name == "clocks"]


@pytest.mark.parametrize("seconds", [-60, 60])
async def test_a_clock_that_differs_from_the_databases_is_a_warning(postgres_url: str, seconds: int) -> None:
    (found,) = await found_of_clocks(postgres_url, OffBy(seconds))
    assert found.status is FindingStatus.WARN
    assert " s apart" in found.message
    assert "NTP" in found.fix


async def test_clocks_that_agree_are_told(postgres_url: str) -> None:
    (found,) = await found_of_clocks(postgres_url, OffBy(0))
    assert found.status is FindingStatus.OK


async def test_a_file_has_no_clock_to_compare_with(sqlite_url: str) -> None:
    assert await found_of_clocks(sqlite_url, OffBy(60)) == []
