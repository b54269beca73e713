"""What is done to engines and upstream servers from their pages."""

from __future__ import annotations

from cwm.domain.upstream_tools import version_of
from tests.adapters.upstream.bad_server import bad_server
from tests.transport.console.actions.conftest import ADMIN, Desk
from tests.transport.console.test_safety import HOSTILE, MARKUP
from tests.transport.console.test_upstreams import a_tool, configured, offering


async def engine_of(desk: Desk, session_id: str) -> str | None:
    session = await desk.session(session_id)
    return None if session is None else session.engine


async def test_a_conversation_moves_to_the_other_engine_once(desk: Desk) -> None:
    await desk.say("talk", "hey")
    source = await engine_of(desk, "talk")
    target = "b" if source == "a" else "a"
    page = await desk.form("/conversations/talk/move")
    assert f"It is on {source}." in page.text
    assert "If anything fails, it stays where it is." in page.text
    answer = await desk.send("/conversations/talk/move", page)
    assert answer.headers["location"] == "/console/conversations/talk?notice=moved"
    assert await engine_of(desk, "talk") == target
    again = await desk.send("/conversations/talk/move", page)
    assert (again.status_code, f"It is on {target}." in again.text) == (409, True)
    assert await engine_of(desk, "talk") == target
    assert await desk.events("session_move") == [("session_move", "success", "local")]


async def test_an_engine_is_drained_and_takes_conversations_again(desk: Desk) -> None:
    await desk.say("talk", "hey")
    source = await engine_of(desk, "talk")
    page = await desk.form(f"/engines/{source}/drain")
    assert "Its 1 conversation, of all tenants, move to other engines" in page.text
    answer = await desk.send(f"/engines/{source}/drain", page)
    assert answer.headers["location"] == "/console/engines?notice=drained"
    assert await engine_of(desk, "talk") != source
    again = await desk.send(f"/engines/{source}/drain", page)
    assert (again.status_code, "It is being drained already" in again.text) == (409, True)
    assert "no other engine that could take it" in (await desk.form("/conversations/talk/move")).text
    page = await desk.form(f"/engines/{source}/undrain")
    answer = await desk.send(f"/engines/{source}/undrain", page)
    assert answer.headers["location"] == "/console/engines?notice=undrained"
    assert (await desk.send(f"/engines/{source}/undrain", page)).status_code == 409
    assert [event for event, _, _ in await desk.events() if event.startswith("engine_")] == [
        "engine_drain",
        "engine_undrain",
    ]


async def test_an_engine_that_is_not_there_is_refused(desk: Desk) -> None:
    for action in ("drain", "undrain"):
        assert "CWM-1003" in (await desk.form(f"/engines/nowhere/{action}", 400)).text
    links = (await desk.page("/engines")).links
    assert links["Drain a"] == "/console/engines/a/drain"
    assert "Undo the drain a" not in links


async def test_changed_tools_are_accepted_one_by_one_as_they_were_read(desk: Desk) -> None:
    tools = desk.parts.agent_side.tool_desk
    before = [version_of(a_tool(name, "As it was.")) for name in ("read", "send")]
    await tools.tools.note("files", before, tools.clock.now())
    async with bad_server() as server:
        offering(server, a_tool("read", MARKUP), a_tool("send", HOSTILE))
        await configured(desk, server.spec(name="files", pin_tools=True))
        links = (await desk.page("/upstreams")).links
        path = links["Accept files"].removeprefix("/console")
        page = await desk.form(path)
        assert "<script>alert" not in page.source
        none = await desk.send(path, page)
        assert (none.status_code, "Choose at least one tool." in none.text) == (400, True)
        read = next(each for each in page.all("label") if each.text.startswith("read "))
        boxes = {each.attributes.get("id"): each.attributes["value"] for each in page.all("input")}
        answer = await desk.send(path, page, {"tool": boxes[read.attributes["for"]]})
        assert answer.headers["location"] == "/console/upstreams?notice=accepted"
        offers = {each.health.name: each for each in await desk.parts.services.offers_of_upstreams(ADMIN)}
        assert [each.version.tool for each in offers["files"].changed] == ["send"]
        again = await desk.send(path, page, {"tool": boxes[read.attributes["for"]]})
        assert (again.status_code, "This has changed since" in again.text) == (409, True)
    assert await desk.events("upstream.accept") == [("upstream.accept", "success", "local")]


async def test_an_upstream_that_is_not_configured_is_refused(desk: Desk) -> None:
    assert "CWM-1003" in (await desk.form("/upstreams/nowhere/accept", 400)).text
