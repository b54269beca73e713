"""What a person comes for, in at most three clicks: where nobody signs in, and behind an OpenID provider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from cwm.ports.registry import Registry
from tests.browser.house import a_house, two_days
from tests.browser.stories import finds_and_goes_on, sees_why_it_was_slow, undoes_the_compaction
from tests.browser.visitor import Visitor, signs_in, visit
from tests.node.programs import Programs
from tests.transport.console.access.test_oauth import deployed

pytestmark = pytest.mark.browser

LAST = "Thanks. Open a pull request."


@dataclass(frozen=True, slots=True)
class Days:
    """What was recorded for the visitor: the turns of a working day by name, and yesterday's talk."""

    visitor: Visitor
    registry: Registry
    day: dict[str, Any]

    async def current(self) -> str:
        session = self.day["session"]
        turn = await self.registry.current_turn(session.tenant, session.id)
        assert turn is not None
        return turn.id


@asynccontextmanager
async def without_sign_in(browser: Browser, folder: Path, template: Path) -> AsyncIterator[Days]:
    async with a_house(folder, template) as house, visit(browser, house.url) as visitor:
        registry = house.console.parts.base.registry
        yield Days(visitor, registry, await two_days(registry))


@asynccontextmanager
async def signed_in(browser: Browser, folder: Path, programs: Programs) -> AsyncIterator[Days]:
    """As alice of the tenant acme, by OAuth, among whose conversations these are."""
    async with (
        deployed(programs, folder) as found,
        visit(browser, found.running.url, found.issuer) as visitor,
    ):
        registry = found.running.parts.base.registry
        day = await two_days(registry, tenant="acme", owner=f"{found.issuer}#alice")
        await signs_in(visitor, "alice")
        yield Days(visitor, registry, day)


@pytest.fixture(params=["without sign-in", "signed in"])
async def days(
    request: pytest.FixtureRequest, browser: Browser, tmp_path: Path, sqlite_template: Path
) -> AsyncIterator[Days]:
    if request.param == "signed in":
        programs: Programs = request.getfixturevalue("programs")
        entering = signed_in(browser, tmp_path, programs)
    else:
        entering = without_sign_in(browser, tmp_path, sqlite_template)
    async with entering as found:
        yield found


async def test_yesterdays_conversation_is_found_and_goes_on(days: Days) -> None:
    assert await finds_and_goes_on(days.visitor, "Who is told?") == "CWM-Continue: session:yesterday-s-talk"


async def test_why_a_turn_was_slow_is_told(days: Days) -> None:
    slow = "Now run them a hundred times."
    broken = await sees_why_it_was_slow(days.visitor, LAST, slow)
    await expect(days.visitor.page.get_by_role("main")).to_contain_text("the first after 1.6 s")
    await expect(broken).to_contain_text("More was computed than needed")
    await expect(broken).to_contain_text("It left what was recorded at message 2")
    await expect(broken.locator("del")).to_contain_text("2026-11-26")
    await expect(broken.locator("ins")).to_contain_text("2026-11-27")


async def test_a_compaction_is_undone(days: Days) -> None:
    await undoes_the_compaction(days.visitor, LAST)
    assert await days.current() == days.day["fifth"].id
    await days.visitor.open(f"/console/conversations/{days.day['session'].id}")
    await expect(days.visitor.page.get_by_role("link", name="Undo")).to_have_count(0)
