"""What an operator sees of single tools' limits and of upgrades that are under way."""

from __future__ import annotations

from pathlib import Path

from cwm.domain.budgets import Budgets
from cwm.domain.limits import Rate, ToolRates
from cwm.domain.tool_policy import ToolPolicies, ToolPolicy
from cwm.domain.upgrade import Upgrade
from cwm.settings import Auth
from tests.contracts.nouns import NOW
from tests.contracts.test_upgrade_records import NEW, OLD, frozen
from tests.transport.console.access.test_sign_in import READING, Door
from tests.transport.console.conftest import a_console
from tests.transport.console.reading import Console, Document

RATES = ToolRates(session=(), principal=(Rate(5, 60), Rate(40, 3600)), tenant=(Rate(200, 3600),))
POLICIES = {
    "web_*": ToolPolicy(rates=RATES),
    "window_status": ToolPolicy(rates=ToolRates(tenant=(Rate(9, 1),))),
    "plain": ToolPolicy(shared=True),
}
TOOLS = Budgets(policies=ToolPolicies(by_name=POLICIES))


def limits(page: Document) -> list[str]:
    items = [" ".join(each.text.split()) for each in page.all("li", class_="item")]
    return [each for each in items if each.startswith(("web_", "window_status", "plain"))]


async def test_tools_with_limits_of_their_own_are_listed_beside_the_others(
    tmp_path: Path, sqlite_template: Path
) -> None:
    async with a_console(tmp_path, sqlite_template, Auth(api_keys=True), budgets=TOOLS) as served:
        door = Door(served.http, served.parts)
        await door.sign_in(await door.key("root"))
        of_web = "web_* no limit in each session 5 in a minute, 40 in an hour by you"
        assert limits(await door.page("/keys")) == [
            f"{of_web} 200 in an hour by the tenant",
            "window_status 9 in a second by the tenant",
        ]
        await door.sign_in(await door.key("reader", scopes=READING))
        assert limits(await door.page("/keys")) == [of_web]


async def test_without_such_limits_the_page_says_how_to_make_some(console: Console) -> None:
    page = await console.page("/keys")
    assert limits(page) == []
    assert "No tool has limits of its own." in page.text


async def test_the_engines_page_shows_how_far_an_upgrade_is(console: Console) -> None:
    registry = console.parts.base.registry
    assert "Upgrades under way" not in (await console.page("/engines")).text
    await registry.begin_upgrade(Upgrade(OLD.model, NEW, NOW))
    page = await console.page("/engines")
    assert f"{OLD.model} goes to {NEW.fingerprint}" in page.text
    assert "it has no guaranteed windows" in page.text
    for number in range(3):
        await frozen(registry, f"old-{number}")
    await frozen(registry, "new", identity=NEW)
    page = await console.page("/engines")
    assert "1 of 4 guaranteed windows are there 3 still to be frozen again" in page.text
    await registry.end_upgrade(OLD.model)
    assert "Upgrades under way" not in (await console.page("/engines")).text


async def test_who_does_not_run_the_gateway_is_told_of_no_upgrade(
    tmp_path: Path, sqlite_template: Path
) -> None:
    async with a_console(tmp_path, sqlite_template, Auth(api_keys=True)) as served:
        door = Door(served.http, served.parts)
        await served.parts.base.registry.begin_upgrade(Upgrade(OLD.model, NEW, NOW))
        for scopes, is_there in ((READING, False), (None, True)):
            key = await (door.key("root") if scopes is None else door.key("reader", scopes=scopes))
            await door.sign_in(key)
            assert ("Upgrades under way" in (await door.page("/engines")).text) is is_there
