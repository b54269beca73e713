"""Pages for people: what is there, a conversation as its tree, what was said, and how to go on."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cwm.domain.canary import Canary, Origin
from cwm.domain.engine import Tier
from cwm.domain.errors import EngineConnectionError
from cwm.domain.look import Look
from cwm.domain.prefix import digest
from cwm.domain.session import SessionState
from cwm.ports.kv_tier import Placement, PrefixKey
from cwm.transport.console.turns import conversations as shown
from tests.contracts.nouns import IDS, a_session, a_window, stored
from tests.transport.console.conftest import a_console
from tests.transport.console.reading import Console, Document
from tests.transport.console.scenes import a_small_talk, a_working_day, assistant, call, opened, user

pytestmark = pytest.mark.slow

TREE = "/conversations/fix-flaky-login-test"


def item(document: Document, number: int) -> str:
    """What the tree says of one turn."""
    return " ".join(document.one("li", id=f"turn-{number}").text.split())


async def test_a_template_that_writes_earlier_answers_in_another_way_is_named_where_it_did(
    console: Console,
) -> None:
    scene = await opened(console.parts.base.registry, "thinking")
    first = await scene.turn(user("hey"), assistant("ho"))
    on = await scene.turn(user("On."), assistant("So."), parent=first, branch_at=590, cause="template")
    for page in (
        item(await console.page("/conversations/thinking"), 2),
        (await console.page(f"/turns/{on.id}")).text,
    ):
        said = " ".join(page.split())
        assert "at token 590: earlier messages became other tokens than before" in said


async def test_an_empty_gateway_says_what_to_do_first(console: Console) -> None:
    first = await console.page()
    assert "cwm connect opencode" in first.text
    assert "cwm sessions create --id first && cwm sessions generate first" in first.text
    assert "There is no conversation yet." in (await console.page("/conversations")).text
    assert "cwm windows freeze CONVERSATION NAME" in (await console.page("/windows")).text


async def test_the_overview_says_what_is_not_well_and_what_goes_on(console: Console) -> None:
    await a_working_day(console.parts.base.registry)
    console.parts.engine_side.reuse.turn("default", 1000, 790)
    page = await console.page()
    assert page.one("h1").text == "Something that every turn needs does not answer."
    matters = page.one("ul", class_="matters").text
    assert "Model engine (vLLM)" in matters
    for period in ("today", "the last 7 days"):
        assert f"Prompt tokens reused, {period} 79 % " in page.text
    assert "790 reused, 210 computed in 1 turn" in page.text
    assert "saved (estimated)" not in page.text, "no turn says how long computing takes"
    assert page.links["Thanks. Open a pull request."] == f"/console{TREE}"
    assert page.links["login-fixed"] == "/console/windows/login-fixed"


async def test_failed_windows_need_attention_however_many_newer_ones_there_are(console: Console) -> None:
    registry, now = console.parts.base.registry, datetime.now(UTC)
    for number in range(60):
        name = f"w{number:02}"
        await registry.add_session(a_session(name, "default"), ())
        at = now - timedelta(minutes=60 - number)
        window = a_window(
            name, "default", session_id=name, snapshot_id=digest(IDS), created_at=at, updated_at=at
        )
        await registry.begin_freeze(window, IDS, None)
        if number < 10:
            await registry.fail_freeze(window, f"Tier {number} is full.", at)
        else:
            await registry.finish_freeze(window, stored(), at)
    matters = (await console.page()).one("ul", class_="matters").text
    assert [number for number in range(10) if f"Tier {number} is full." in matters] == [*range(2, 10)]
    assert "2 older ones failed, too." in " ".join(matters.split())


async def test_conversations_are_listed_by_state_and_page_by_page(console: Console) -> None:
    registry = console.parts.base.registry
    for number in range(27):
        await registry.add_session(a_session(f"s{number:02}", "default"), ())
    await registry.add_session(a_session("old", "default", state=SessionState.EXPIRED), ())
    first = await console.page("/conversations")
    assert len(first.all("li", class_="item")) == 25
    second = await console.page(first.links["Older"].removeprefix("/console"))
    assert len(second.all("li", class_="item")) == 3
    assert not {*first.links} & {*second.links} & {f"s{number:02}" for number in range(27)}
    expired = await console.page("/conversations?state=expired")
    assert [each.text.split()[0] for each in expired.all("li", class_="item")] == ["old"]
    assert "No conversation is thawed." in (await console.page("/conversations?state=thawed")).text


@pytest.mark.parametrize("words", ["Flaky", "Claude-CLI", "before-compaction"])
async def test_conversations_are_found_by_what_they_are_called(console: Console, words: str) -> None:
    await a_working_day(console.parts.base.registry)
    await a_small_talk(console.parts.base.registry, "talk", ("hey", "ho"))
    page = await console.page(f"/conversations?q={words}")
    assert "Conversations with this in their id, client or tags" in page.text
    assert f"/console{TREE}" in page.links.values()
    assert "/console/conversations/talk" not in page.links.values()


async def test_conversations_are_found_by_words_and_by_id(console: Console) -> None:
    await a_small_talk(console.parts.base.registry, "report", ("What changed in billing?", "Seven things."))
    by_words = await console.page("/conversations?q=CHANGED+billing")
    assert "What changed in billing?" in by_words.links
    assert by_words.links["report"] == "/console/conversations/report"
    by_id = await console.page("/conversations?q=report")
    assert "A conversation has this id" in by_id.text
    nothing = await console.page("/conversations?q=nobody+said+this")
    assert "No message has these words" in nothing.text
    assert "2 messages were read" in nothing.text


async def test_a_conversation_is_shown_as_its_tree(console: Console) -> None:
    day = await a_working_day(console.parts.base.registry)
    page = await console.page(TREE)
    assert "11 Thanks. Open a pull request. it goes on here" in item(page, 11)
    assert "97 % reused" in item(page, 11)
    assert "goes on from a summary of turn 9" in item(page, 10)
    assert "window login-fixed" in item(page, 9)
    assert "tag green" in item(page, 9)
    assert "branches off from turn 8" in item(page, 9)
    assert "side line" in item(page, 7)
    assert "first token after 2.4 s" in item(page, 2)
    assert page.links["11 Thanks. Open a pull request."] == f"/console/turns/{day['last'].id}"
    assert len(page.all("svg", class_="bar")) == 11


async def test_summaries_can_be_undone_where_a_conversation_goes_on_from_them(console: Console) -> None:
    day = await a_working_day(console.parts.base.registry)
    again = await day["scene"].turn(
        user("Summary: it is open."), assistant("Yes."), tokens=90, compacts=day["last"].id, compactions=2
    )
    await day["scene"].turn(user("And now?"), assistant("We wait."), parent=again, tokens=20)

    async def undoable() -> list[str]:
        page = await console.page(TREE)
        return [each.attributes["href"] for each in page.all("a", class_="undo")]

    undone = [f"/console/turns/{day[name].id}/revert" for name in ("last", "fifth")]
    assert await undoable() == undone
    for name, left in (("last", undone[1:]), ("fifth", [])):
        assert await console.parts.base.registry.revert(day[name], day["scene"].now) is not None
        assert await undoable() == left


async def test_the_tree_says_what_broke_the_prefix_and_how_to_switch_that_off(console: Console) -> None:
    await a_working_day(console.parts.base.registry)
    said = item(await console.page(TREE), 9)
    assert "More was computed than needed: the engine no longer had the KV of its parent." in said
    assert "at message 2: a message has other words; the client writes the date into its request." in said
    assert "before: Today's date: 2026-11-26" in said
    assert "now: Today's date: 2026-11-27" in said


async def test_lines_of_the_tree_lead_from_each_turn_to_its_parent(console: Console) -> None:
    await a_working_day(console.parts.base.registry)
    page = await console.page(TREE)
    kinds = [each.attributes["class"] for each in page.elements if each.name in {"line", "path"}]
    assert {"trunk", "side", "summary"} == set(kinds)
    # One line comes from the side: the retry that its turn was asked again for.
    assert [each.attributes["class"] for each in page.all("path")] == ["side"]


async def test_a_long_conversation_comes_page_by_page(console: Console) -> None:
    scene = await opened(console.parts.base.registry, "long")
    parent = None
    for number in range(53):
        parent = await scene.turn(user(f"q{number}"), assistant("a"), parent=parent, tokens=3, answer=2)
    first = await console.page("/conversations/long")
    assert len(first.all("li", class_="turn")) == 50
    older = await console.page(first.links["Older"].removeprefix("/console"))
    assert [each.attributes["id"] for each in older.all("li", class_="turn")] == [
        "turn-3",
        "turn-2",
        "turn-1",
    ]
    assert older.links["Newest"] == "/console/conversations/long"


async def test_lines_come_in_at_the_top_from_the_page_before(console: Console) -> None:
    scene = await opened(console.parts.base.registry, "long")
    first = parent = await scene.turn(user("q1"), assistant("a"), tokens=3, answer=2)
    for number in range(2, 56):
        parent = await scene.turn(user(f"q{number}"), assistant("a"), parent=parent, tokens=3, answer=2)
    await scene.turn(user("again"), assistant("b"), parent=first, tokens=3, answer=2, main=False)
    page = await console.page("/conversations/long?before=7")
    lines = [
        tuple(each.attributes[name] for name in ("class", "x1", "y1", "y2")) for each in page.all("line")
    ]
    assert page.all("li", class_="turn")[0].attributes["id"] == "turn-6"
    assert lines[:3] == [
        ("side", "28", "0", "100%"),
        ("trunk", "12", "0", "24"),
        ("trunk", "12", "24", "100%"),
    ]
    # The turn of the side line is more than a page away from this one.
    further = await console.page("/conversations/long?before=5")
    assert {each.attributes["class"] for each in further.all("line")} == {"trunk"}
    assert len(further.all("li", class_="turn")) == 4


async def test_a_turn_shows_what_was_said_and_how_to_go_on(console: Console) -> None:
    day = await a_working_day(console.parts.base.registry)
    turn = day["second"]
    page = await console.page(f"/turns/{turn.id}")
    assert page.one("h1").text == "Turn 3"
    roles = [each.text for each in page.all("h3")]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    folded = [" ".join(each.text.split()) for each in page.all("summary")]
    assert folded[0].startswith("Thinking A flaky test")
    assert folded[1] == 'Calls Read { "file_path": "tests/test_login.py" }'
    assert folded[2].startswith("Result of Read def test_login")
    assert "what this turn added" in page.text
    assert [each.text for each in page.all("pre") if "sleep" in each.text][-1].startswith("def test_login")
    for command in (f"cwm turns branch {turn.id}", f"CWM-Continue: turn:{turn.id}"):
        assert [each for each in page.all("button") if each.attributes["data-copy"] == command]
    assert page.links["Turn 2, before"] == f"/console/turns/{day['first'].id}"
    assert page.links["turn 6"] == f"/console/turns/{day['third'].id}"
    assert "1,410 computed" in page.text


async def test_the_arguments_of_a_tool_call_have_the_digits_that_were_sent(console: Console) -> None:
    scene = await opened(console.parts.base.registry, "numbers")
    written = '{"price": 1.10, "part": 0.12345678901234567890, "huge": 1e400, "whole": 9007199254740993, "a": 1, "a": 2.0}'
    turn = await scene.turn(user("Pay."), assistant("", tool_calls=[call("pay", written)]))
    page = await console.page(f"/turns/{turn.id}")
    (shown,) = [each.text for each in page.all("pre") if "price" in each.text]
    assert shown.split() == ["{", *written[1:-1].split(), "}"]


async def test_a_tag_leads_to_its_turn(console: Console) -> None:
    await a_working_day(console.parts.base.registry)
    assert (await console.page("/turns/tag:green")).one("h1").text == "Turn 9"


async def test_many_messages_come_page_by_page_and_a_long_one_in_part(console: Console) -> None:
    scene = await opened(console.parts.base.registry, "long")
    said = [user(f"question {number}") for number in range(60)]
    turn = await scene.turn(*said, assistant("x" * 1_000_000))
    page = await console.page(f"/turns/{turn.id}")
    assert "Messages 22 to 61 of 61" in page.text
    assert "980,000 more characters are not shown here" in page.text
    assert len(page.source) < 100_000
    earlier = await console.page(page.links["Earlier ones"].removeprefix("/console"))
    assert "question 0" in earlier.text


async def test_of_a_message_of_thousands_of_parts_some_are_shown_and_the_others_counted(
    console: Console,
) -> None:
    scene = await opened(console.parts.base.registry, "parts")
    parts = [{"type": "text", "text": f"{number} " + "x" * 700} for number in range(5_000)]
    turn = await scene.turn({"role": "user", "content": parts}, assistant("Yes."))
    page = await console.page(f"/turns/{turn.id}")
    assert re.search(r"4,9\d\d more parts are not shown", page.text)
    assert len(page.source) < 200_000


async def test_a_turn_that_a_tag_keeps_is_shown_when_its_conversation_was_deleted(console: Console) -> None:
    await a_working_day(console.parts.base.registry)
    turn = await console.parts.base.registry.turn("default", "tag:green")
    assert turn is not None
    await console.parts.base.registry.remove_session("default", turn.session_id, turn.asked_at)
    assert (await console.page(f"/turns/{turn.id}")).one("h1").text == "Turn 9"


async def test_a_slash_at_the_end_leads_to_the_page(console: Console) -> None:
    for path, page in (("/", ""), ("/conversations/", "/conversations")):
        answer = await console.answer(path)
        assert (answer.status_code, answer.headers["location"]) == (307, f"/console{page}")


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        (Origin.COMPUTED, "recorded on computed KV"),
        (Origin.INHERITED, "recorded on KV with a good verdict"),
        (Origin.UNPROVEN, "recorded on KV that nothing has proven yet"),
    ],
)
async def test_a_window_says_where_its_canary_comes_from(
    console: Console, origin: Origin, words: str
) -> None:
    registry = console.parts.base.registry
    await a_working_day(registry)
    window = await registry.window("default", "login-race-found")
    assert window is not None
    await registry.record_canary(window, Canary(Look((33, 65), ({7: -0.5}, {8: -0.5})), origin))
    page = await console.page("/windows/login-race-found")
    assert f"a canary of 2 places, {words}, is compared at each thaw" in " ".join(page.text.split())


async def test_a_window_says_what_proves_it_where_it_is_from_and_what_it_holds(console: Console) -> None:
    day = await a_working_day(console.parts.base.registry)
    assert "2 windows" in (await console.page("/windows")).text
    page = await console.page("/windows/login-race-found")
    assert "The cause is known, nothing changed yet" in page.text
    assert re.search(r"Blocks 3 .* 8\.4 MiB", page.text)
    assert "read back" in page.text
    assert "no canary: a thaw cannot compare" in page.text
    assert page.links["at this turn"] == f"/console/turns/{day['third'].id}"
    assert page.links["fix-flaky-login-test"] == f"/console{TREE}"
    assert "cwm windows thaw login-race-found" in page.text
    assert "A clock that the test moves by itself removes the race." in page.text
    found = await console.page("/windows?q=tests+pass")
    assert [each.text.split()[0] for each in found.all("li", class_="item")] == ["login-fixed"]


class Directory:
    """LMCache as far as it says where blocks are."""

    async def lookup(self, _: PrefixKey) -> list[Placement]:
        tiers = {"aa01": {Tier.CPU, Tier.DISK}, "aa02": {Tier.DISK}, "aa03": set[Tier]()}
        return [Placement(name, 2_949_120, frozenset(where)) for name, where in tiers.items()]


async def test_the_bar_of_a_window_has_its_blocks_by_the_nearest_tier(
    tmp_path: Path, sqlite_template: Path
) -> None:
    async with a_console(tmp_path, sqlite_template, kv_tier=Directory()) as console:
        await a_working_day(console.parts.base.registry)
        page = await console.page("/windows/login-race-found")
    legend = " ".join(page.one("ul", class_="legend").text.split())
    assert legend == "1 cpu1 disk1 in no tier"
    assert "66 % of them are in a tier" in page.text
    widths = {
        each.attributes["class"]: (each.attributes["x"], each.attributes["width"])
        for each in page.all("rect")
        if each.attributes["class"].startswith("tier-")
    }
    assert widths == {"tier-cpu": ("0.0%", "33.33%"), "tier-disk": ("33.33%", "33.33%")}


class Away:
    async def lookup(self, _: PrefixKey) -> list[Placement]:
        raise EngineConnectionError("LMCache does not answer.")


async def test_where_nobody_knows_where_blocks_are_no_bar_says_so(
    tmp_path: Path, sqlite_template: Path
) -> None:
    async with a_console(tmp_path, sqlite_template, kv_tier=Away()) as console:
        await a_working_day(console.parts.base.registry)
        page = await console.page("/windows/login-race-found")
    assert "LMCache does not say where they are" in page.text
    assert page.all("ul", class_="legend") == []


async def test_the_engines_are_there_although_they_do_not_answer(console: Console) -> None:
    page = await console.page("/engines")
    assert "does not answer now" in page.one("ul", class_="cards").text


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/conversations/not-there", 404, "CWM-2001"),
        ("/conversations/bad%20id", 400, "CWM-1001"),
        ("/turns/not-there", 404, "CWM-2007"),
        ("/turns/no%20turn", 404, "CWM-2007"),
        ("/windows/not-there", 404, "CWM-2002"),
        ("/windows/bad.name", 400, "CWM-1002"),
        ("/conversations?after=made-up", 400, "CWM-1003"),
        ("/conversations?state=asleep", 400, "CWM-1003"),
        ("/conversations/a?before=0", 400, "CWM-1003"),
        ("/nowhere", 404, "CWM-1003"),
        ("/static/console.css", 404, "CWM-1003"),
    ],
)
async def test_what_is_not_there_is_told_with_its_code_and_what_to_do(
    console: Console, path: str, status: int, code: str
) -> None:
    answer = await console.answer(path, **{"x-request-id": "request-1"})
    page = await console.page(path, status)
    assert f"{status} · {code}" in page.text
    assert "Overview" in page.links
    assert "request-1" in answer.text


async def test_a_search_says_how_far_it_looked_and_goes_on(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown, "_SEARCH_SECONDS", 0.0)
    registry = console.parts.base.registry
    await a_small_talk(registry, "older", ("Where is the walrus?", "In the north."), age_minutes=60)
    await a_small_talk(registry, "newer", ("Where is the tapir?", "In the south."), age_minutes=30)
    first = await console.page("/conversations?q=walrus")
    assert "No message has these words so far" in first.text
    assert "2 messages were read, in conversations that began up to" in " ".join(first.text.split())
    second = await console.page(first.links["Search on"].removeprefix("/console"))
    assert second.links["Where is the walrus?"].startswith("/console/turns/")
    last = await console.page(second.links["Search on"].removeprefix("/console"))
    assert "older ones were not searched yet" not in last.text
    assert "Search on" not in last.links
