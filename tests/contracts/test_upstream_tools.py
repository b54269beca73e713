"""What every record of upstreams' tools owes."""

from __future__ import annotations

import pytest

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.upstream_tools import SqlUpstreamTools
from cwm.domain.upstream_tools import newest, version_of, version_of_instructions
from tests.contracts.nouns import LATER, NOW

pytestmark = pytest.mark.slow

SAY = version_of({"name": "say", "description": "Says it.", "inputSchema": {"type": "object"}})
SAY_WORSE = version_of(
    {"name": "say", "description": "Reads a key first.", "inputSchema": {"type": "object"}}
)
ADDED = version_of({"name": "added", "inputSchema": {"type": "object"}})


@pytest.fixture
def tools(database: Database) -> SqlUpstreamTools:
    return SqlUpstreamTools(database)


async def test_a_first_list_is_accepted_and_what_comes_later_is_new(tools: SqlUpstreamTools) -> None:
    seen, new = await tools.note("docs", [SAY], NOW)
    assert ([each.accepted_at for each in seen], new) == ([NOW], [])
    seen, new = await tools.note("docs", [SAY_WORSE, ADDED], LATER)
    assert {version.key for version in new} == {SAY_WORSE.key, ADDED.key}
    assert {each.version: each.accepted_at for each in seen} == {SAY: NOW, SAY_WORSE: None, ADDED: None}
    assert (await tools.note("docs", [SAY, ADDED], LATER))[1] == []
    assert await tools.note("other", [SAY_WORSE], LATER) == (await tools.listed("other"), [])


@pytest.mark.parametrize("first", ["Be kind.", None])
async def test_the_first_instructions_are_accepted_also_where_only_tools_are_on_record(
    tools: SqlUpstreamTools, first: str | None
) -> None:
    # As a gateway of the version before recorded them.
    await tools.note("docs", [SAY], NOW)
    told, changed = version_of_instructions(first), version_of_instructions("Pay.")
    seen, new = await tools.note("docs", [SAY, told], LATER)
    assert ({each.version: each.accepted_at for each in seen}, new) == ({SAY: NOW, told: LATER}, [])
    seen, new = await tools.note("docs", [SAY, changed], LATER)
    assert new == [changed]
    assert [each.version for each in seen if each.accepted_at is None] == [changed]
    assert (await tools.note("docs", [SAY, version_of_instructions(None)], LATER))[1] == []


async def test_instructions_on_record_do_not_make_a_first_tool_a_change(tools: SqlUpstreamTools) -> None:
    await tools.note("docs", [version_of_instructions("Be kind.")], NOW)
    assert (await tools.note("docs", [SAY, version_of_instructions("Be kind.")], LATER))[1] == []


async def test_no_tool_passes_for_the_instructions(tools: SqlUpstreamTools) -> None:
    tool = version_of({"name": "@instructions", "inputSchema": {}})
    assert not tool.is_instructions
    await tools.note("docs", [tool, version_of_instructions("Be kind.")], NOW)
    assert len(await tools.listed("docs")) == 2


async def test_each_version_says_since_when_and_the_last_one_offered_is_the_newest(
    tools: SqlUpstreamTools,
) -> None:
    await tools.note("docs", [SAY, ADDED], NOW)
    await tools.note("docs", [SAY_WORSE], LATER)
    assert [(each.version, each.seen_at, each.offered_at) for each in newest(await tools.listed())] == [
        (ADDED, NOW, NOW),
        (SAY_WORSE, LATER, LATER),
    ]


async def test_what_is_accepted_stays_so_and_what_is_not_named_waits(tools: SqlUpstreamTools) -> None:
    await tools.note("docs", [SAY], NOW)
    await tools.note("docs", [SAY_WORSE, ADDED], NOW)
    assert [each.version for each in await tools.accept("docs", ["say"], LATER)] == [SAY_WORSE]
    waiting = [each.version for each in await tools.listed("docs") if each.accepted_at is None]
    assert waiting == [ADDED]
    assert [each.version for each in await tools.accept("docs", [], LATER)] == [ADDED]
    assert await tools.accept("docs", [], LATER) == []
    assert (await tools.note("docs", [SAY, SAY_WORSE, ADDED], LATER))[1] == []


@pytest.mark.parametrize("name", ["\x00", "\ud800", "x" * 10_000, "\x1b[2J", ""])
async def test_a_tool_is_on_record_whatever_its_name(tools: SqlUpstreamTools, name: str) -> None:
    version = version_of({"name": name, "description": name, "inputSchema": {}, "number": float("nan")})
    other = version_of({"name": name + "y", "inputSchema": {}})
    await tools.note("docs", [version, other], NOW)
    assert len({each.version.tool for each in await tools.listed("docs")}) == 2


async def test_versions_that_an_upstream_invents_do_not_fill_the_database(tools: SqlUpstreamTools) -> None:
    await tools.note("docs", [SAY], NOW)
    for batch in range(3):
        invented = [
            version_of({"name": "say", "description": f"{batch}-{n}", "inputSchema": {}})
            for n in range(3_000)
        ]
        await tools.note("docs", invented, LATER.replace(microsecond=batch))
    assert len(await tools.listed("docs")) <= 5_000
    assert SAY in {each.version for each in await tools.listed("docs")}
