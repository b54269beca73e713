"""What there is of every tenant together, on both databases."""

from __future__ import annotations

from cwm.ports.registry import Registry, Stock
from tests.contracts.nouns import IDS, a_session, a_window, freeze


async def test_an_empty_registry_has_nothing_in_any_state(registry: Registry) -> None:
    stock = await registry.stock_of_every_tenant()
    assert stock == Stock(
        {"active": 0, "frozen": 0, "thawed": 0, "expired": 0, "deleted": 0},
        {"pending": 0, "durable": 0, "failed": 0},
    )


async def test_sessions_and_windows_of_all_tenants_are_counted_together(registry: Registry) -> None:
    for tenant in ("acme", "umbrella"):
        await freeze(registry, "kept", tenant=tenant)
        await registry.add_session(a_session("talks", tenant), IDS)
    await registry.add_session(a_session("stores"), IDS)
    await registry.begin_freeze(a_window("pending", session_id="stores"), IDS, 0)
    stock = await registry.stock_of_every_tenant()
    assert stock.windows == {"pending": 1, "durable": 2, "failed": 0}
    assert sum(stock.sessions.values()) == 5
    assert stock.sessions["frozen"] >= 2
    assert stock.sessions["active"] == 3 - (stock.sessions["frozen"] - 2)
