"""What is done from pages, by somebody with a mouse, with a keyboard alone, without script, twice, and too late."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, expect

from cwm.domain.turn import TurnSource
from tests.adapters.vllm.fake_vllm import fake_vllm
from tests.browser.house import House, a_house, changed_upstream
from tests.browser.visitor import Visitor, visit
from tests.transport.console.actions.conftest import ADMIN, Desk

pytestmark = pytest.mark.browser
_MOST_STEPS = 40


@pytest.fixture
async def house(browser: Browser, tmp_path: Path, sqlite_template: Path) -> AsyncIterator[House]:
    """A gateway before two engines that answer, whose pages a test may act on."""
    async with (
        fake_vllm() as a,
        fake_vllm() as b,
        a_house(tmp_path, sqlite_template, engines={"a": a.url, "b": b.url}) as served,
    ):
        yield served


@pytest.fixture
async def desk(house: House) -> Desk:
    """The same gateway from within, with a conversation of three turns."""
    desk = Desk(house.console.http, house.console.parts)
    await desk.say("talk", "hey", "go on", "and on")
    return desk


def notice(visitor: Visitor) -> Locator:
    return visitor.page.locator("p.notice")


async def press(visitor: Visitor, name: str) -> None:
    await visitor.page.get_by_role("button", name=name, exact=True).click()
    await visitor.page.wait_for_load_state("load")


async def act(visitor: Visitor, path: str, name: str) -> None:
    """Follow the link of an action from the page at ``path``."""
    await visitor.open(path)
    await visitor.page.get_by_role("list", name="Actions").get_by_role("link", name=name).first.click()
    await visitor.page.wait_for_load_state("load")


async def first_turn(desk: Desk) -> str:
    log = await desk.parts.services.history.log(ADMIN, TurnSource(session_id="talk"))
    return log.turns[-1].id


def refused(visitor: Visitor) -> None:
    """That a page answered 409 is told in the browser's console, too."""
    visitor.problems[:] = [each for each in visitor.problems if "409 (Conflict)" not in each]


async def test_a_conversation_is_frozen_cloned_and_its_window_thawed(visitor: Visitor, desk: Desk) -> None:
    page = visitor.page
    await act(visitor, "/console/conversations/talk", "Freeze")
    await page.get_by_label("Name of the window").fill("kept")
    await page.get_by_label("What it contains").fill("All of it")
    await press(visitor, "Freeze")
    await expect(page.get_by_role("heading", name="kept", level=1)).to_be_visible()
    await expect(notice(visitor)).to_be_visible()
    assert (await desk.window("kept")).description == "All of it"
    await act(visitor, "/console/windows/kept", "Clone")
    await page.get_by_label("name", exact=False).first.fill("second")
    await press(visitor, "Clone")
    await expect(page.get_by_role("heading", name="second", level=1)).to_be_visible()
    await act(visitor, "/console/windows/kept", "Thaw")
    await page.get_by_label("Id of the new conversation").fill("thawed")
    await press(visitor, "Thaw")
    await expect(page.get_by_role("heading", name="thawed", level=1)).to_be_visible()
    session = await desk.session("thawed")
    assert session is not None
    assert session.thawed_from == "kept"


async def test_a_turn_is_tagged_gone_back_to_and_branched_off(visitor: Visitor, desk: Desk) -> None:
    first = await first_turn(desk)
    page, turn = visitor.page, f"/console/turns/{first}"
    await act(visitor, turn, "Tag")
    await page.get_by_role("textbox").first.fill("begin")
    await press(visitor, "Tag")
    await expect(page.locator(".label").get_by_text("begin")).to_be_visible()
    await act(visitor, turn, "Go back to it")
    await expect(page.get_by_text("stay in the tree")).to_be_visible()
    await press(visitor, "Go back to it")
    assert await desk.current("talk") == first
    await act(visitor, turn, "Branch")
    await page.get_by_role("textbox").first.fill("side")
    await press(visitor, "Branch")
    await expect(page.get_by_role("heading", name="side", level=1)).to_be_visible()
    assert await desk.session("side") is not None


async def test_what_is_deleted_is_named_with_what_it_frees(visitor: Visitor, desk: Desk) -> None:
    await act(visitor, "/console/conversations/talk", "Delete")
    await expect(visitor.page.get_by_text("This frees 3 turns")).to_be_visible()
    await visitor.page.get_by_role("link", name="Cancel").click()
    await expect(visitor.page.get_by_role("heading", name="talk", level=1)).to_be_visible()
    assert await desk.session("talk") is not None
    await act(visitor, "/console/conversations/talk", "Delete")
    await press(visitor, "Delete")
    await expect(visitor.page.get_by_role("heading", name="Conversations", level=1)).to_be_visible()
    await expect(notice(visitor)).to_be_visible()
    assert await desk.session("talk") is None


async def test_a_window_is_kept_longer(visitor: Visitor, desk: Desk) -> None:
    await desk.parts.services.freeze(ADMIN, "talk", "kept")
    await desk.parts.services.clone(ADMIN, "kept", "short", ttl_seconds=3600)
    await act(visitor, "/console/windows/short", "Keep longer")
    await visitor.page.get_by_role("combobox").select_option("never")
    await press(visitor, "Keep longer")
    await expect(notice(visitor)).to_be_visible()
    assert (await desk.window("short")).expires_at is None


async def test_a_window_is_renamed_and_deleted(visitor: Visitor, desk: Desk) -> None:
    await desk.parts.services.freeze(ADMIN, "talk", "kept")
    await act(visitor, "/console/windows/kept", "Rename")
    await visitor.page.get_by_label("New name").fill("better")
    await press(visitor, "Rename")
    await expect(visitor.page.get_by_role("heading", name="better", level=1)).to_be_visible()
    await act(visitor, "/console/windows/better", "Delete")
    await press(visitor, "Delete")
    await expect(notice(visitor)).to_have_text("The window is deleted.")
    assert [each.name for each in await desk.parts.services.browse.windows_of(ADMIN, "talk")] == []


async def test_a_frozen_conversation_takes_turns_again_and_moves(visitor: Visitor, desk: Desk) -> None:
    await desk.parts.services.freeze(ADMIN, "talk", "kept")
    await act(visitor, "/console/conversations/talk", "Unfreeze")
    await press(visitor, "Unfreeze")
    await expect(notice(visitor)).to_have_text("The conversation takes turns again.")
    before = await desk.session("talk")
    assert before is not None
    await act(visitor, "/console/conversations/talk", "Move")
    await press(visitor, "Move")
    await expect(notice(visitor)).to_have_text("The conversation is on that engine.")
    after = await desk.session("talk")
    assert after is not None
    assert {before.engine, after.engine} == {"a", "b"}


async def test_a_turn_is_frozen_loses_its_tag_and_its_branch_is_deleted(visitor: Visitor, desk: Desk) -> None:
    first, page = await first_turn(desk), visitor.page
    await act(visitor, f"/console/turns/{first}", "Tag")
    await page.get_by_role("textbox").first.fill("begin")
    await press(visitor, "Tag")
    await act(visitor, f"/console/turns/{first}", "Remove a tag")
    await press(visitor, "Remove a tag")
    await expect(notice(visitor)).to_have_text("The tag is gone.")
    await act(visitor, f"/console/turns/{first}", "Freeze")
    await page.get_by_label("Name of the window").fill("at-the-first")
    await press(visitor, "Freeze")
    assert (await desk.window("at-the-first")).turn_id == first
    last = await desk.current("talk")
    await act(visitor, f"/console/turns/{first}", "Go back to it")
    await press(visitor, "Go back to it")
    await act(visitor, f"/console/turns/{last}", "Delete")
    await press(visitor, "Delete")
    await expect(notice(visitor)).to_have_text("The branch is deleted.")


async def test_an_engine_is_drained_and_takes_conversations_again(visitor: Visitor, desk: Desk) -> None:
    session = await desk.session("talk")
    assert session is not None
    await visitor.open("/console/engines")
    await visitor.page.get_by_role("link", name=f"Drain {session.engine}").click()
    await expect(visitor.page.get_by_text("Its 1 conversation")).to_be_visible()
    await press(visitor, "Drain")
    await expect(notice(visitor)).to_be_visible()
    moved = await desk.session("talk")
    assert moved is not None
    assert moved.engine not in {None, session.engine}
    await visitor.page.get_by_role("link", name=f"Undo the drain {session.engine}").click()
    await press(visitor, "Undo the drain")
    await expect(visitor.page.get_by_role("link", name=f"Drain {session.engine}")).to_be_visible()


async def test_a_tool_that_an_upstream_changed_is_accepted(visitor: Visitor, desk: Desk) -> None:
    before = {"read": "As it was.", "send": "As it was."}
    async with changed_upstream(desk, before, {**before, "read": "Now it writes."}):
        await visitor.open("/console/upstreams")
        await visitor.page.get_by_role("link", name="Accept files").click()
        await visitor.page.get_by_role("checkbox", name="read").check()
        await press(visitor, "Accept")
        await expect(notice(visitor)).to_be_visible()
        await expect(visitor.page.get_by_role("link", name="Accept files")).to_have_count(0)


async def test_a_page_that_is_too_old_does_nothing_and_says_what_is_so_now(
    visitor: Visitor, desk: Desk
) -> None:
    first = await first_turn(desk)
    await act(visitor, f"/console/turns/{first}", "Go back to it")
    (now,) = await desk.say("talk", "meanwhile")
    await press(visitor, "Go back to it")
    await expect(visitor.page.get_by_role("alert")).to_contain_text("This has changed since you looked at it")
    await expect(visitor.page.get_by_text("It is at turn 4 now.")).to_be_visible()
    assert await desk.current("talk") == now
    await press(visitor, "Go back to it")
    assert await desk.current("talk") == first
    refused(visitor)


async def test_a_form_that_is_sent_again_from_history_does_it_once(visitor: Visitor, desk: Desk) -> None:
    await act(visitor, "/console/conversations/talk", "Freeze")
    await visitor.page.get_by_label("Name of the window").fill("kept")
    await press(visitor, "Freeze")
    await expect(notice(visitor)).to_be_visible()
    await visitor.page.go_back()
    await visitor.page.get_by_label("Name of the window").fill("kept")
    await press(visitor, "Freeze")
    await expect(visitor.page.get_by_role("alert")).to_contain_text("CWM-3003")
    assert [event for event in await desk.events("window_freeze") if event[1] == "success"] == [
        ("window_freeze", "success", "local")
    ]
    refused(visitor)


async def test_a_double_click_does_it_once(visitor: Visitor, desk: Desk) -> None:
    await act(visitor, "/console/conversations/talk", "Freeze")
    await visitor.page.get_by_label("Name of the window").fill("kept")
    await visitor.page.get_by_role("button", name="Freeze").dblclick(no_wait_after=True)
    await expect(notice(visitor).or_(visitor.page.get_by_role("alert"))).to_be_visible()
    assert await desk.window("kept") is not None
    outcomes = [outcome for _, outcome, _ in await desk.events("window_freeze")]
    assert outcomes.count("success") == 1
    refused(visitor)


async def test_a_turn_is_gone_back_to_by_keyboard_alone(visitor: Visitor, desk: Desk) -> None:
    first = await first_turn(desk)
    page = visitor.page
    await visitor.open(f"/console/turns/{first}")
    await _reach(visitor, "Go back to it")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Go back to turn 1")).to_be_visible()
    await _reach(visitor, "Go back to it")
    await page.keyboard.press("Enter")
    await expect(notice(visitor)).to_be_visible()
    assert await desk.current("talk") == first


async def test_without_script_a_turn_is_tagged(browser: Browser, house: House, desk: Desk) -> None:
    first = await first_turn(desk)
    async with visit(browser, house.url, java_script_enabled=False) as visitor:
        await act(visitor, f"/console/turns/{first}", "Tag")
        await visitor.page.get_by_role("textbox").first.fill("begin")
        await press(visitor, "Tag")
        await expect(notice(visitor)).to_be_visible()
    assert [tag.name for tag in await desk.parts.services.history.tags(ADMIN)] == ["begin"]


async def _reach(visitor: Visitor, name: str) -> None:
    """Press the tabulator until the focus is on what has this name."""
    for _ in range(_MOST_STEPS):
        await visitor.page.keyboard.press("Tab")
        if await visitor.page.evaluate("document.activeElement.textContent") == name:
            return
    raise AssertionError(f"{name!r} is not reached in {_MOST_STEPS} steps.")
