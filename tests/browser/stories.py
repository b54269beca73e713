"""What a person comes for, told once for every gateway. Each story begins at the overview, and says with how many clicks it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Locator, expect

from tests.browser.visitor import Visitor


@asynccontextmanager
async def clicks(visitor: Visitor, count: int) -> AsyncIterator[None]:
    """From the overview on, so many of them, and nothing else that leads anywhere."""
    await visitor.open()
    before = visitor.clicks
    yield
    assert visitor.clicks - before == count <= 3


async def finds_and_goes_on(visitor: Visitor, last: str) -> str:
    """Find a conversation among all by what was asked last, and copy what any client goes on with it by."""
    async with clicks(visitor, 3):
        await visitor.follow("Conversations")
        await visitor.follow(last)
        await visitor.page.get_by_role("button", name="to any model endpoint").click()
        await expect(visitor.page.get_by_role("button", name="Copied")).to_be_visible()
    return await visitor.copied()


async def sees_why_it_was_slow(visitor: Visitor, last: str, slow: str) -> Locator:
    """See in a conversation how long a turn took and why, then on the turn's own page; what is said there."""
    async with clicks(visitor, 2):
        await visitor.follow(last)
        turn = _turn(visitor, slow)
        await expect(turn).to_contain_text("first token after")
        await expect(turn).to_contain_text("It left what was recorded at message")
        await turn.get_by_role("link", name=slow).click()
        await expect(visitor.page.locator(".broken")).to_be_visible()
    return visitor.page.locator(".broken")


async def undoes_the_compaction(visitor: Visitor, last: str) -> None:
    """Have the conversation go on from before its summary."""
    async with clicks(visitor, 3):
        await visitor.follow(last)
        await _turn(visitor, "goes on from a summary").get_by_role("link", name="Undo").click()
        await visitor.page.get_by_role("button", name="Go back to it").click()
        await expect(visitor.page.locator("p.notice")).to_have_text("The conversation goes on here.")


def _turn(visitor: Visitor, words: str) -> Locator:
    return visitor.page.get_by_role("listitem").filter(has_text=words)
