"""Every page in a real browser: read aloud, narrow, without script, and by keyboard alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.browser.house import House
from tests.browser.screenshots import drawn
from tests.browser.visitor import Visitor, visit

pytestmark = pytest.mark.browser
_MOST_STEPS = 40


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_nothing_serious_keeps_anybody_out_of_any_page(
    browser: Browser, house: House, axe: str, scheme: str
) -> None:
    async with visit(browser, house.url, color_scheme=scheme) as visitor:
        barriers = {}
        for path in house.pages():
            await visitor.open(path)
            if found := await visitor.barriers(axe):
                barriers[path] = found
    assert barriers == {}


async def test_every_page_fits_a_narrow_screen(browser: Browser, house: House) -> None:
    async with visit(browser, house.url, viewport={"width": 360, "height": 740}) as visitor:
        too_wide = {}
        for path in house.pages():
            await visitor.open(path)
            await visitor.page.evaluate(
                "for (const each of document.querySelectorAll('details')) each.open = true"
            )
            if (overflow := await visitor.overflow()) > 0:
                too_wide[path] = overflow
    assert too_wide == {}


async def test_every_page_is_drawn_once(browser: Browser, house: House, tmp_path: Path) -> None:
    assert await drawn(browser, house, tmp_path, {"color_scheme": "dark"}) == len(house.pages())
    assert len([*tmp_path.glob("*.png")]) == len(house.pages())  # noqa: ASYNC240 - the test waits for nobody


async def test_times_are_in_the_readers_zone(browser: Browser, house: House) -> None:
    async with visit(browser, house.url, timezone_id="Pacific/Auckland", locale="en-GB") as visitor:
        await visitor.open("/console/conversations/yesterday-s-talk")
        time = visitor.page.locator("time").first
        title = await time.get_attribute("title")
        here = await time.evaluate(
            "each => new Intl.DateTimeFormat('en-GB', {dateStyle: 'medium', timeStyle: 'medium', "
            "timeZone: 'Pacific/Auckland'}).format(new Date(each.dateTime))"
        )
    assert title == here


async def test_everything_works_without_script(browser: Browser, house: House) -> None:
    async with visit(browser, house.url, java_script_enabled=False) as visitor:
        for path in house.pages():
            await visitor.open(path)
            await expect(visitor.page.get_by_role("heading", level=1)).to_be_visible()
            await expect(visitor.page.locator("button.copy:visible")).to_have_count(0)
        await visitor.open("/console/conversations")
        await visitor.page.get_by_role("searchbox").fill("rotate")
        await visitor.page.get_by_role("button", name="Search").click()
        await visitor.follow("rotate the signing keys")
        await expect(
            visitor.page.get_by_text("With cwm rotate", exact=False)
            .or_(visitor.page.get_by_text("With `cwm rotate`"))
            .first
        ).to_be_visible()
        await visitor.open(f"/console/turns/{house.day['second'].id}")
        folded = visitor.page.locator("details").first
        await folded.locator("summary").click()
        await expect(folded.locator("pre, p").first).to_be_visible()


async def test_a_turn_is_reached_by_keyboard_alone(visitor: Visitor) -> None:
    page = visitor.page
    await visitor.open()
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    await expect(page.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
    await page.keyboard.press("Enter")
    await expect(page.locator("main")).to_be_focused()
    await page.keyboard.press("Shift+Tab")
    await _reach(visitor, "Conversations", "Shift+Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Conversations", level=1)).to_be_visible()
    await _reach(visitor, "Thanks. Open a pull request.", "Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="fix-flaky-login-test")).to_be_visible()
    await _reach(visitor, "Now run them a hundred times.", "Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("100 of 100 runs passed.")).to_be_visible()


async def _reach(visitor: Visitor, name: str, key: str) -> None:
    """Press ``key`` until the focus is on a link of this name; whatever has the focus is seen to have it."""
    for _ in range(_MOST_STEPS):
        focus = await visitor.page.evaluate(
            "(({textContent, tagName}, style) => [tagName, textContent, style.outlineStyle, style.outlineWidth])"
            "(document.activeElement, getComputedStyle(document.activeElement))"
        )
        if focus[0] == "A" and name in focus[1]:
            return
        if focus[0] not in {"BODY", "MAIN"}:
            assert focus[2:] == ["solid", "3px"], focus
        await visitor.page.keyboard.press(key)
    raise AssertionError(f"{name!r} is not reached in {_MOST_STEPS} steps.")
