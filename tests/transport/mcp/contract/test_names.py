"""A name is what its pattern says, whatever it means elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cwm.settings import Database
from tests.contracts.nouns import freeze
from tests.tenancy import A, B, TwoTenants, two_tenants
from tests.transport.mcp.gateway import MODERN, fastmcp_agent

pytestmark = pytest.mark.slow

KEYWORDS = ("DROP", "select", "UNION-ALL", "delete_from", "or", "NULL", "--", "x--")


@pytest.fixture
async def tenants(tmp_path: Path) -> AsyncIterator[TwoTenants]:
    async with two_tenants(tmp_path, Database(db_path=tmp_path / "cwm.db")) as running:
        yield running


async def test_a_word_of_sql_names_a_session_or_window_and_does_nothing_else(tenants: TwoTenants) -> None:
    before = await tenants.everything_of_a()
    async with fastmcp_agent(tenants.url, MODERN, B) as agent:
        for word in KEYWORDS:
            created = (await agent.call("session_create", {"session_id": word})).value
            assert created["session_id"] == word
            turn = (await agent.call("session_generate", {"session_id": word, "text": "hello"})).value
            assert turn["session_id"] == word
            await freeze(tenants.parts.base.registry, word, tenant=B)
            assert (await agent.call("window_status", {"window_name": word})).value["id"] == word
            found = (await agent.call("window_list", {"search": word})).value["windows"]
            assert word in [window["name"] for window in found]
            assert (await agent.call("window_delete", {"window_name": word})).value["window_name"] == word
            assert (await agent.call("session_delete", {"session_id": word})).value["success"]
            assert (await agent.call("window_list")).value["total"] == 0
    assert await tenants.everything_of_a() == before


@pytest.mark.parametrize("statement", ["DROP TABLE sessions", "x' OR 1=1 --", "s; DELETE FROM windows"])
async def test_a_statement_is_no_name_and_is_recorded_as_an_attack(
    tenants: TwoTenants, statement: str
) -> None:
    async with fastmcp_agent(tenants.url, MODERN, B) as agent:
        assert (await agent.call("session_create", {"session_id": statement})).error["code"] == "CWM-1001"
        assert (await agent.call("window_status", {"window_name": statement})).error["code"] == "CWM-1002"
    events = await tenants.parts.base.audit.events(B, 10)
    assert {(event.event, event.details["class"]) for event in events} == {("security.injection", "sql")}
    assert A not in {event.tenant for event in events}
