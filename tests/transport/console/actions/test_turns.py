"""What is done to turns and conversations from their pages."""

from __future__ import annotations

import pytest

from tests.transport.console.actions.conftest import ADMIN, Desk, proposed

pytestmark = pytest.mark.slow


async def test_a_conversation_goes_on_elsewhere_from_a_turn(desk: Desk) -> None:
    first, _ = await desk.say("talk", "hey", "go on")
    page = await desk.form(f"/turns/{first}/branch")
    assert "Conversation talk stays as it is." in page.text
    assert "What tools did is not undone." in page.text
    answer = await desk.send(f"/turns/{first}/branch", page, {"session_id": "other"})
    assert answer.headers["location"] == "/console/conversations/other?notice=branched"
    branch = await desk.session("other")
    assert branch is not None
    assert branch.origin == first
    again = await desk.send(f"/turns/{first}/branch", page, {"session_id": "other"})
    assert (again.status_code, "CWM-3001" in again.text) == (409, True)
    outcomes = [outcome for _, outcome, _ in await desk.events("turn_branch")]
    assert outcomes == ["success", "CWM-3001"]


async def test_going_back_says_what_a_client_undoes_and_what_nobody_can(desk: Desk) -> None:
    first, second = await desk.say("talk", "hey", "go on")
    page = await desk.form(f"/turns/{first}/revert")
    assert "It is at turn 2 now." in page.text
    assert (
        "A client that sends its whole conversation again moves it to where that conversation is" in page.text
    )
    assert "does not undo what tools did" in page.text
    answer = await desk.send(f"/turns/{first}/revert", page)
    assert answer.headers["location"] == f"/console/turns/{first}?notice=reverted"
    assert await desk.current("talk") == first
    again = await desk.send(f"/turns/{first}/revert", page)
    assert (again.status_code, "The conversation is here already." in again.text) == (409, True)
    assert await desk.events("turn_revert") == [("turn_revert", "success", "local")]
    assert "Go back to it" not in (await desk.page(f"/turns/{first}")).links
    assert "Go back to it" in (await desk.page(f"/turns/{second}")).links


async def test_what_went_on_meanwhile_is_asked_about_again(desk: Desk) -> None:
    (first,) = await desk.say("talk", "hey")
    await desk.say("talk", "go on")
    page = await desk.form(f"/turns/{first}/revert")
    (third,) = await desk.say("talk", "and on")
    stale = await desk.send(f"/turns/{first}/revert", page)
    assert stale.status_code == 409
    assert "This has changed since you looked at it" in stale.text
    assert "It is at turn 3 now." in stale.text
    assert await desk.current("talk") == third
    assert await desk.events("turn_revert") == []


async def test_a_tag_is_set_moved_and_removed(desk: Desk) -> None:
    first, second = await desk.say("talk", "hey", "go on")
    page = await desk.form(f"/turns/{first}/tag")
    answer = await desk.send(f"/turns/{first}/tag", page, {"tag": "v1.0"})
    assert answer.headers["location"] == f"/console/turns/{first}?notice=tagged"
    assert (await desk.send(f"/turns/{first}/tag", page, {"tag": "v1.0"})).status_code == 409
    taken = await desk.send(f"/turns/{second}/tag", await desk.form(f"/turns/{second}/tag"), {"tag": "v1.0"})
    assert (taken.status_code, "CWM-3009" in taken.text) == (409, True)
    given = {"tag": "v1.0", "move": "yes"}
    assert await desk.done(f"/turns/{second}/tag", given) == f"/turns/{second}?notice=tagged"
    assert "Remove a tag" not in (await desk.page(f"/turns/{first}")).links
    page = await desk.form(f"/turns/{second}/untag")
    foreign = await desk.send(f"/turns/{second}/untag", page, {"tag": "another"})
    assert (foreign.status_code, "CWM-1003" in foreign.text) == (400, True)
    assert (await desk.send(f"/turns/{second}/untag", page)).status_code == 303
    assert (await desk.send(f"/turns/{second}/untag", page)).status_code == 409
    assert await desk.parts.services.history.tags(ADMIN) == []
    outcomes = [outcome for _, outcome, _ in await desk.events("turn_tag")]
    assert outcomes == ["success", "CWM-3009", "success", "success"]


async def test_a_branch_is_deleted_with_all_that_came_from_it(desk: Desk) -> None:
    first, second, third = await desk.say("talk", "hey", "go on", "and on")
    held = await desk.form(f"/turns/{second}/delete")
    assert "It is held by the conversation, which is there." in held.text
    assert held.all("form", class_="confirm") == []
    await desk.done(f"/turns/{first}/revert")
    page = await desk.form(f"/turns/{second}/delete")
    assert "This removes 2 turns for ever" in page.text
    answer = await desk.send(f"/turns/{second}/delete", page)
    assert answer.headers["location"] == "/console/conversations/talk?notice=turns-deleted"
    registry = desk.parts.base.registry
    there = [await registry.turn("default", each) for each in (first, second, third)]
    assert [turn is not None for turn in there] == [True, False, False]
    again = await desk.send(f"/turns/{second}/delete", page)
    assert (again.status_code, "CWM-2007" in again.text) == (404, True)
    assert await desk.events("turn_delete") == [("turn_delete", "success", "local")]


async def test_what_a_tag_or_window_holds_is_not_deleted(desk: Desk) -> None:
    first, second = await desk.say("talk", "hey", "go on")
    await desk.done(f"/turns/{second}/tag", {"tag": "dear"})
    await desk.done(f"/turns/{second}/freeze", {"name": "kept"})
    await desk.done(f"/turns/{first}/revert")
    held = await desk.form(f"/turns/{second}/delete")
    assert "It is held by tag dear, window kept." in held.text


async def test_an_earlier_turn_is_frozen_and_the_conversation_goes_on(desk: Desk) -> None:
    first, _ = await desk.say("talk", "hey", "go on")
    page = await desk.form(f"/turns/{first}/freeze")
    assert proposed(page)["name"] == "talk-turn-1"
    answer = await desk.send(f"/turns/{first}/freeze", page)
    assert answer.headers["location"] == "/console/windows/talk-turn-1?notice=frozen"
    assert (await desk.window("talk-turn-1")).turn_id == first
    again = await desk.send(f"/turns/{first}/freeze", page)
    assert (again.status_code, "CWM-3003" in again.text) == (409, True)
    await desk.say("talk", "and on")


async def test_a_conversation_is_frozen_unfrozen_and_deleted(desk: Desk) -> None:
    await desk.say("talk", "hey")
    links = (await desk.page("/conversations/talk")).links
    assert {"Freeze", "Delete"} <= set(links)
    assert "Unfreeze" not in links
    page = await desk.form("/conversations/talk/freeze")
    assert "This can take some seconds." in page.text
    given = {"name": "kept", "keep": None, "retention": "best_effort"}
    assert (await desk.send("/conversations/talk/freeze", page, given)).status_code == 303
    window, session = await desk.window("kept"), await desk.session("talk")
    assert session is not None
    assert (window.retention.value, session.state.value) == ("best_effort", "frozen")
    again = await desk.send("/conversations/talk/freeze", page, given)
    assert (again.status_code, "It is frozen." in again.text) == (409, True)
    assert "delete its windows first" in (await desk.form("/conversations/talk/delete")).text
    assert await desk.done("/conversations/talk/unfreeze") == "/conversations/talk?notice=unfrozen"
    page = await desk.form("/conversations/talk/delete")
    assert "This frees 1 turn with" in page.text
    assert "Its windows stay: kept." in page.text
    answer = await desk.send("/conversations/talk/delete", page)
    assert answer.headers["location"] == "/console/conversations?notice=conversation-deleted"
    assert await desk.session("talk") is None
    assert (await desk.send("/conversations/talk/delete", page)).status_code == 404
    done = [event for event, outcome, _ in await desk.events() if outcome == "success"]
    assert done[-3:] == ["window_freeze", "session_unfreeze", "session_delete"]


async def test_an_empty_conversation_is_not_frozen(desk: Desk) -> None:
    await desk.say("empty")
    assert "there is nothing to freeze" in (await desk.form("/conversations/empty/freeze")).text
    assert "Freeze" not in (await desk.page("/conversations/empty")).links
