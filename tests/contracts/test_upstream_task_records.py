"""What every record of upstreams' tasks owes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.upstream_tasks import SqlUpstreamTasks
from cwm.domain.upstream_tasks import UpstreamTask, new_handle
from tests.contracts.nouns import NOW

pytestmark = pytest.mark.slow

HOUR = timedelta(hours=1)


@pytest.fixture
def tasks(database: Database) -> SqlUpstreamTasks:
    return SqlUpstreamTasks(database)


def a_task(age: int = 0, **given: Any) -> UpstreamTask:
    created_at = NOW - timedelta(seconds=age)
    until = created_at + HOUR
    task = UpstreamTask("acme", new_handle(), "ann", "docs", "docs_dig", created_at, until, until)
    return replace(task, **given)


async def test_a_task_is_found_by_its_tenant_as_it_was_changed_last(tasks: SqlUpstreamTasks) -> None:
    task = a_task()
    assert await tasks.keep(task, 1)
    changed = replace(task, task_id="7", session="s", status="completed", open_until=NOW)
    await tasks.change(changed)
    assert await tasks.find("acme", task.handle) == changed
    assert await tasks.find("rival", task.handle) is None
    await tasks.forget(task)
    await tasks.change(changed)
    assert await tasks.find("acme", task.handle) is None


async def test_of_those_that_begin_at_once_no_more_are_open_than_may_be(tasks: SqlUpstreamTasks) -> None:
    ended = a_task(age=60, open_until=NOW)
    assert await tasks.keep(ended, 1)
    for other in (a_task(owner="bob"), a_task(tenant="rival")):
        assert await tasks.keep(other, 1)
    kept = await asyncio.gather(*(tasks.keep(a_task(), 3) for _ in range(6)))
    assert sum(kept) == 3


async def test_an_owner_s_tasks_are_listed_page_by_page_the_newest_first(tasks: SqlUpstreamTasks) -> None:
    mine = [a_task(age) for age in range(5)]
    for task in (*mine, a_task(owner="bob")):
        assert await tasks.keep(task, 10)
    first = await tasks.of_owner("acme", "ann", limit=3)
    rest = await tasks.of_owner("acme", "ann", first[-1], limit=3)
    assert [*first, *rest] == mine


async def test_what_has_expired_is_removed_for_every_tenant(tasks: SqlUpstreamTasks) -> None:
    old, new = a_task(age=3_600, tenant="rival"), a_task()
    for task in (old, new):
        assert await tasks.keep(task, 1)
    await tasks.forget_expired_of_every_tenant(NOW)
    assert await tasks.find("rival", old.handle) is None
    assert await tasks.find("acme", new.handle) == new
