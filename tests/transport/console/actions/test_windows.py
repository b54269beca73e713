"""What is done to windows from their pages."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.transport.console.actions.conftest import ADMIN, Desk, proposed
from tests.transport.console.scenes import assistant, opened, user

pytestmark = pytest.mark.slow


@pytest.fixture
async def kept(desk: Desk) -> Desk:
    """A conversation ``talk`` of two turns, of which the window ``kept`` was frozen."""
    await desk.say("talk", "hey", "go on")
    assert await desk.done("/conversations/talk/freeze", {"name": "kept"}) == "/windows/kept?notice=frozen"
    return desk


async def test_a_window_is_thawed_under_the_id_on_the_page(kept: Desk) -> None:
    page = await kept.form("/windows/kept/thaw")
    assert "The window stays as it is." in page.text
    chosen = proposed(page)["session_id"]
    answer = await kept.send("/windows/kept/thaw", page)
    assert answer.headers["location"].startswith(f"/console/conversations/{chosen}?notice=thawed")
    session = await kept.session(chosen)
    assert session is not None
    assert session.thawed_from == "kept"
    assert await kept.events("window_thaw") == [("window_thaw", "success", "local")]
    shown = await kept.page(answer.headers["location"].removeprefix("/console"))
    assert "goes on from the window" in shown.one("p", role="status").text


async def test_a_thaw_that_is_sent_twice_opens_one_conversation(kept: Desk) -> None:
    page = await kept.form("/windows/kept/thaw")
    assert (await kept.send("/windows/kept/thaw", page)).status_code == 303
    again = await kept.send("/windows/kept/thaw", page)
    assert again.status_code == 409
    assert "CWM-3001" in again.text
    outcomes = [outcome for _, outcome, _ in await kept.events("window_thaw")]
    assert outcomes == ["success", "CWM-3001"]


async def test_a_clone_has_the_name_and_the_words_of_the_form(kept: Desk) -> None:
    given = {"name": "second", "description": "for <b>later</b>"}
    assert await kept.done("/windows/kept/clone", given) == "/windows/second?notice=cloned"
    clone = await kept.window("second")
    assert (clone.parent_window, clone.description) == ("kept", "for <b>later</b>")
    assert await kept.events("window_clone") == [("window_clone", "success", "local")]
    again = await kept.send("/windows/kept/clone", await kept.form("/windows/kept/clone"), given)
    assert (again.status_code, "CWM-3003" in again.text) == (409, True)
    assert 'value="second"' in again.text


async def test_a_window_gets_another_name_once(kept: Desk) -> None:
    page = await kept.form("/windows/kept/rename")
    answer = await kept.send("/windows/kept/rename", page, {"name": "better"})
    assert answer.headers["location"] == "/console/windows/better?notice=renamed"
    assert (await kept.window("kept"), (await kept.window("better")).name) == (None, "better")
    again = await kept.send("/windows/kept/rename", page, {"name": "better"})
    assert (again.status_code, "CWM-2002" in again.text) == (404, True)
    assert await kept.events("window_rename") == [("window_rename", "success", "local")]


async def test_a_window_that_expires_is_kept_longer_once_for_each_page(kept: Desk) -> None:
    assert "Keep longer" not in (await kept.page("/windows/kept")).links
    assert "never expires" in (await kept.form("/windows/kept/extend")).text
    await kept.parts.services.clone(ADMIN, "kept", "short", ttl_seconds=3600)
    before = (await kept.window("short")).expires_at
    page = await kept.form((await kept.page("/windows/short")).links["Keep longer"].removeprefix("/console"))
    assert page.all("option")[-1].text == "for ever"
    answer = await kept.send("/windows/short/extend", page)
    assert answer.headers["location"] == "/console/windows/short?notice=extended"
    assert (await kept.window("short")).expires_at - before == timedelta(days=7)
    again = await kept.send("/windows/short/extend", page)
    assert (again.status_code, "This has changed since you looked at it" in again.text) == (409, True)
    assert (await kept.window("short")).expires_at - before == timedelta(days=7)
    assert await kept.done("/windows/short/extend", {"until": "never"}) == "/windows/short?notice=extended"
    assert (await kept.window("short")).expires_at is None
    assert [outcome for _, outcome, _ in await kept.events("window_extend")] == ["success", "success"]


@pytest.mark.parametrize("until", ["", "tomorrow", "2020-01-01T00:00:00+00:00", "2999-01-01T00:00:00+00:00"])
async def test_a_time_that_is_none_or_not_to_come_changes_nothing(kept: Desk, until: str) -> None:
    await kept.parts.services.clone(ADMIN, "kept", "short", ttl_seconds=3600)
    before = await kept.window("short")
    answer = await kept.send(
        "/windows/short/extend", await kept.form("/windows/short/extend"), {"until": until}
    )
    assert (answer.status_code, "CWM-1003" in answer.text) == (400, True)
    assert await kept.window("short") == before


async def test_a_deletion_says_which_blocks_it_frees_and_which_are_shared(desk: Desk) -> None:
    scene = await opened(desk.parts.base.registry, "talk")
    first = await scene.turn(user("hey"), assistant("ho"))
    second = await scene.turn(user("go on"), assistant("on"), parent=first)
    await scene.window(first, "short", "aa01", "aa02")
    await scene.window(second, "long", "aa01", "aa02", "aa03")
    live = await desk.form("/windows/long/delete")
    assert "This frees 0 blocks" in live.text
    assert "3 others stay" in live.text
    await desk.parts.services.end_session(ADMIN, "talk")
    assert "This frees 0 blocks" in (await desk.form("/windows/short/delete")).text
    page = await desk.form("/windows/long/delete")
    assert "This frees 1 block, 2.8 MiB, in every tier that has them." in page.text
    assert "2 others stay, since windows or conversations share them." in page.text
    assert "Nothing of conversation talk is deleted" in page.text


async def test_a_window_is_deleted_once(kept: Desk) -> None:
    page = await kept.form("/windows/kept/delete")
    assert "This frees 0 blocks" in page.text
    answer = await kept.send("/windows/kept/delete", page)
    assert answer.headers["location"] == "/console/windows?notice=window-deleted"
    assert await kept.window("kept") is None
    assert "The window is deleted." in (await kept.page("/windows?notice=window-deleted")).text
    assert (await kept.send("/windows/kept/delete", page)).status_code == 404
    assert await kept.events("window_delete") == [("window_delete", "success", "local")]


async def test_a_window_in_use_is_deleted_only_by_who_says_so(kept: Desk) -> None:
    seen = await kept.form("/windows/kept/delete")
    thawed = (await kept.done("/windows/kept/thaw")).split("/")[2].partition("?")[0]
    stale = await kept.send("/windows/kept/delete", seen)
    assert stale.status_code == 409
    assert "This has changed since" in stale.text
    assert thawed in stale.text
    page = await kept.form("/windows/kept/delete")
    refused = await kept.send("/windows/kept/delete", page)
    assert (refused.status_code, "CWM-3004" in refused.text) == (409, True)
    assert (await kept.send("/windows/kept/delete", page, {"force": "yes"})).status_code == 303
    assert await kept.window("kept") is None


async def test_a_notice_is_a_code_and_never_text_of_the_address(desk: Desk) -> None:
    page = await desk.page("/windows?notice=%3Cb%3EPay+me%3C%2Fb%3E")
    assert "Pay me" not in page.source
    assert page.all("p", role="status") == []
