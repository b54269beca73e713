"""Pages that change by themselves, and disturb nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.house import House, a_house, furnished
from tests.browser.visitor import Visitor
from tests.eventually import eventually
from tests.transport.console import test_kept
from tests.transport.console.scenes import Scene, a_small_talk, assistant, opened, user

pytestmark = pytest.mark.browser
_HIDE = """hidden => {
  Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
  document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.fixture
async def house(browser: Browser, tmp_path: Path, sqlite_template: Path) -> AsyncIterator[House]:
    async with a_house(tmp_path, sqlite_template) as served:
        yield served


@pytest.fixture
async def talk(house: House) -> Scene:
    scene = await opened(house.console.parts.base.registry, "talk", age_minutes=60)
    for number in range(12):
        await scene.turn(user(f"Question {number}"), assistant("An answer."))
    scene.now = datetime.now(UTC) - timedelta(seconds=75)
    return scene


async def open_page(house: House, visitor: Visitor, path: str, streams: int = 1) -> Page:
    """The page, when its stream is there and knows what is so now."""
    await visitor.open(path)
    await listeners(house, streams)
    await house.console.parts.services.live.look()
    return visitor.page


async def listeners(house: House, count: int) -> None:
    await eventually(lambda: len(house.console.parts.services.live) == count)


async def test_a_list_and_a_tree_show_a_new_turn_without_a_reload(
    house: House, visitor: Visitor, talk: Scene
) -> None:
    page = await open_page(house, visitor, "/console/conversations")
    await page.evaluate("window.isTheSamePage = true")
    await talk.turn(user("Is anybody there?"), assistant("Yes."))
    await expect(page.get_by_role("link", name="Is anybody there?")).to_be_visible()
    await expect(page.get_by_role("status")).to_have_text("Updated")
    assert await page.evaluate("window.isTheSamePage")
    page = await open_page(house, visitor, "/console/conversations/talk")
    await talk.turn(user("And now?"), assistant("Still."))
    await expect(page.get_by_role("link", name="And now?")).to_be_visible()


async def test_a_tree_is_not_loaded_for_a_turn_of_another_conversation(
    house: House, visitor: Visitor, talk: Scene
) -> None:
    page = await open_page(house, visitor, "/console/conversations/talk")
    loads: list[str] = []
    page.on("request", lambda request: loads.append(request.url))
    await a_small_talk(house.console.parts.base.registry, "other", ("Hello?", "Hello."), age_minutes=-1)
    await house.console.parts.services.live.look()
    await talk.turn(user("And now?"), assistant("Still."))
    await expect(page.get_by_role("link", name="And now?")).to_be_visible()
    assert loads == [f"{house.url}/console/conversations/talk"]


async def test_the_place_the_focus_and_what_is_unfolded_stay(
    house: House, visitor: Visitor, talk: Scene
) -> None:
    turn = await talk.turn(user("Keep this."), assistant("I do."))
    await talk.window(turn, "kept", "aa")
    page = await open_page(house, visitor, "/console/windows/kept")
    await page.locator("details.ways summary").click()
    await page.evaluate("scrollTo(0, 300)")
    await page.get_by_role("link", name="talk").first.evaluate("each => each.focus({preventScroll: true})")
    await talk.window(await talk.turn(user("More."), assistant("Yes.")), "kept-too", "bb")
    async with page.expect_response(f"{house.url}/console/windows/kept") as loaded:
        assert (await loaded.value).ok
    await expect(page.locator("details.ways")).to_have_attribute("open", "")
    await expect(page.get_by_role("link", name="talk").first).to_be_focused()
    assert await page.evaluate("scrollY") == 300


async def test_a_field_in_use_is_left_alone(house: House, visitor: Visitor, talk: Scene) -> None:
    page, search = visitor.page, visitor.page.get_by_role("searchbox")
    await without_streams(visitor)
    await visitor.open("/console/conversations")
    await search.fill("wor")
    await search.blur()
    await talk.turn(user("Is anybody there?"), assistant("Yes."))
    loads: list[str] = []
    page.on("request", lambda request: loads.append(request.url))
    await page.clock.run_for(60_000)
    assert [each for each in loads if "/events" not in each] == []
    await expect(search).to_have_value("wor")
    await search.fill("")
    await search.blur()
    await page.clock.run_for(20_000)
    await expect(page.get_by_role("link", name="Is anybody there?")).to_be_visible()


async def test_a_button_says_copied_until_it_has_been_read(
    house: House, visitor: Visitor, talk: Scene
) -> None:
    page = visitor.page
    await without_streams(visitor)
    await visitor.open("/console/conversations/talk")
    # Just before the page would be loaded again.
    await page.clock.pause_at(datetime.now(UTC) + timedelta(seconds=14))
    await talk.turn(user("And now?"), assistant("Still."))
    loads: list[str] = []
    page.on("request", lambda request: loads.append(request.url))
    await page.locator("button[data-copy]").first.click()
    await expect(page.get_by_role("button", name="Copied")).to_be_visible()
    await page.clock.run_for(1_200)
    assert [each for each in loads if "/events" not in each] == []
    await page.clock.run_for(20_000)
    await expect(page.get_by_role("link", name="And now?")).to_be_visible()


async def test_a_hidden_page_closes_its_stream_and_is_right_when_it_is_seen_again(
    house: House, visitor: Visitor, talk: Scene
) -> None:
    page = await open_page(house, visitor, "/console/conversations")
    await page.evaluate(_HIDE, True)
    await listeners(house, 0)
    await talk.turn(user("Is anybody there?"), assistant("Yes."))
    await page.evaluate(_HIDE, False)
    await expect(page.get_by_role("link", name="Is anybody there?")).to_be_visible()
    await listeners(house, 1)


async def test_a_browser_has_two_streams_and_its_third_page_is_loaded_from_time_to_time(
    house: House, visitor: Visitor, talk: Scene
) -> None:
    await open_page(house, visitor, "/console/conversations")
    pages = [await visitor.page.context.new_page() for _ in range(2)]
    await pages[0].goto(f"{house.url}/console/windows")
    await listeners(house, 2)
    third = pages[1]
    await third.clock.install()
    await third.goto(f"{house.url}/console/conversations")
    assert await third.evaluate("navigator.locks.query().then(locks => locks.held.length)") == 2
    await talk.turn(user("Is anybody there?"), assistant("Yes."))
    await third.clock.run_for(20_000)
    await expect(third.get_by_role("link", name="Is anybody there?")).to_be_visible()
    assert len(house.console.parts.services.live) == 2
    await pages[0].close()
    await listeners(house, 1)
    await third.clock.run_for(20_000)
    await listeners(house, 2)


async def test_without_streams_a_page_is_loaded_from_time_to_time(
    house: House, visitor: Visitor, talk: Scene
) -> None:
    await without_streams(visitor)
    await visitor.open("/console/conversations")
    await talk.turn(user("Is anybody there?"), assistant("Yes."))
    await visitor.page.clock.run_for(20_000)
    await expect(visitor.page.get_by_role("link", name="Is anybody there?")).to_be_visible()


async def test_what_a_page_does_to_be_made_is_no_news(house: House, visitor: Visitor) -> None:
    """Else it would load itself again and again."""
    live, directory = house.console.parts.services.live, house.console.parts.engine_side.directory
    await eventually(lambda: not any(each.is_up for each in directory.health.values()))
    async with furnished(house):
        with live.listening(test_kept.LOCAL) as listener:
            await live.look()
            listener.take()
            for path in (
                "",
                "/conversations",
                "/conversations/fix-flaky-login-test",
                "/windows",
                "/engines",
                "/upstreams",
            ):
                await visitor.open(f"/console{path}")
            await live.look()
            assert listener.take() == {}


async def without_streams(visitor: Visitor) -> None:
    """Time moves by hand, and what answers for the stream is no stream."""
    await visitor.page.clock.install()
    await visitor.page.route(
        "**/console/events*", lambda route: route.fulfill(content_type="text/event-stream")
    )
