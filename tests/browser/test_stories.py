"""What a person comes for, in at most three clicks."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.browser.house import House
from tests.browser.visitor import Visitor

pytestmark = pytest.mark.browser


async def test_yesterdays_conversation_is_found_and_goes_on(visitor: Visitor) -> None:
    await visitor.open()
    await visitor.follow("Conversations")
    await visitor.follow("Who is told?")
    await visitor.page.get_by_role("button", name="to any model endpoint").click()
    await expect(visitor.page.get_by_role("button", name="Copied")).to_be_visible()
    assert await visitor.copied() == "CWM-Continue: session:yesterday-s-talk"


async def test_why_a_turn_was_slow_is_told(visitor: Visitor) -> None:
    await visitor.open()
    await visitor.follow("Thanks. Open a pull request.")
    slow = visitor.page.get_by_role("listitem").filter(has_text="Now run them a hundred times.")
    await expect(slow).to_contain_text("first token after 1.6 s")
    await expect(slow).to_contain_text("It left what was recorded at message 2")
    await slow.get_by_role("link", name="Now run them a hundred times.").click()
    broken = visitor.page.locator(".broken")
    await expect(broken).to_contain_text("More was computed than needed")
    await expect(broken.locator("del")).to_contain_text("2026-11-26")
    await expect(broken.locator("ins")).to_contain_text("2026-11-27")


async def test_a_compaction_is_undone(house: House, visitor: Visitor) -> None:
    before = house.day["fifth"]
    await visitor.open()
    await visitor.follow("Thanks. Open a pull request.")
    compacted = visitor.page.get_by_role("listitem").filter(has_text="goes on from a summary")
    await expect(compacted).to_contain_text(f"goes on from a summary of turn {before.number}")
    await visitor.follow("Now run them a hundred times.")
    await visitor.page.get_by_role("button", name="Open a new conversation").click()
    await expect(visitor.page.get_by_role("button", name="Copied")).to_be_visible()
    assert await visitor.copied() == f"cwm turns branch {before.id}"
