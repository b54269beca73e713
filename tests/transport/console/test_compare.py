"""Two contexts side by side: any two of conversations, windows, turns and tags."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest

from tests.transport.console.reading import Console, Document
from tests.transport.console.scenes import a_small_talk, a_working_day, assistant, opened, user
from tests.transport.console.test_safety import MARKUP, UNSEEN

pytestmark = pytest.mark.slow


def compared(left: str, right: str) -> str:
    return f"/compare?{urlencode({'left': left, 'right': right})}"


def sides(page: Document) -> list[str]:
    """What the page says of each of the two."""
    return [
        " ".join(each.text.split())
        for each in page.all("section")
        if each.attributes["aria-labelledby"].startswith("side-")
    ]


async def test_two_turns_are_compared_by_tokens_and_messages(console: Console) -> None:
    day = await a_working_day(console.parts.base.registry)
    fourth, fifth = day["fourth"], day["fifth"]
    page = await console.page(compared(f"turn:{fourth.id}", f"turn:{fifth.id}"))
    first, second = sides(page)
    assert "They begin alike, and part at message" in page.text
    assert "In common 4,200" in page.text
    assert f"A switch computes {fifth.total_tokens - 4200:,}" in page.text
    assert "nothing was measured yet, or the engine does not answer" in page.text
    assert first.startswith(f"First: Turn {fourth.number} {fourth.total_tokens:,} tokens")
    assert "of fix-flaky-login-test" in second
    assert page.links[f"Turn {fifth.number}"] == f"/console/turns/{fifth.id}"
    assert f"cwm turns diff turn:{fourth.id} turn:{fifth.id}" in page.text


async def test_what_differs_first_stands_side_by_side(console: Console) -> None:
    day = await a_working_day(console.parts.base.registry)
    page = await console.page(compared(f"turn:{day['tried'].id}", f"turn:{day['fourth'].id}"))
    first, second = sides(page)
    assert "Do it with a sleep of half a second, quickly." in first
    assert "Use a clock that the test moves." in second
    words = " ".join(page.one("p", class_="words").text.split())
    assert words.startswith("first: Do it with a sleep")


async def test_a_turn_is_compared_with_its_parent_and_with_where_the_conversation_is(
    console: Console,
) -> None:
    day = await a_working_day(console.parts.base.registry)
    turn = await console.page(f"/turns/{day['third'].id}")
    parent = await console.page(turn.links["Compare with its parent"].removeprefix("/console"))
    assert "The second goes on where the first ends." in parent.text
    assert "A switch computes 540" in parent.text
    now = await console.page(
        turn.links["Compare with where the conversation is now"].removeprefix("/console")
    )
    assert "conversation fix-flaky-login-test" in now.links
    assert now.links["turn 11"] == f"/console/turns/{day['last'].id}"
    last = await console.page(f"/turns/{day['last'].id}")
    assert "Compare with where the conversation is now" not in last.links


async def test_a_window_is_compared_with_its_conversation_and_turned_round(console: Console) -> None:
    await a_working_day(console.parts.base.registry)
    window = await console.page("/windows/login-fixed")
    page = await console.page(
        window.links["Compare with where the conversation is now"].removeprefix("/console")
    )
    assert page.links["window login-fixed"] == "/console/windows/login-fixed"
    assert "They differ from the first token on." in page.text
    other_way = await console.page(page.links["The other way round"].removeprefix("/console"))
    assert sides(other_way)[1].startswith("Second: window login-fixed")


async def test_a_context_is_the_same_as_itself(console: Console) -> None:
    await a_small_talk(console.parts.base.registry, "talk", ("Hey?", "Ho."))
    page = await console.page(compared("session:talk", "session:talk"))
    assert "Both are the same context." in page.text
    assert "It has no more messages." in page.text


async def test_without_two_names_the_page_asks_for_them(console: Console) -> None:
    for path in ("/compare", "/compare?left=session:a"):
        page = await console.page(path)
        assert "Name two contexts" in page.text
        assert len(page.all("input")) == 2


async def test_what_is_compared_is_shown_as_text(console: Console) -> None:
    scene = await opened(console.parts.base.registry, "hostile")
    hostile = f"{MARKUP}{UNSEEN}"
    first = await scene.turn(user("hey"), assistant("ho"))
    one = await scene.turn(user(hostile), assistant("a"), parent=first)
    other = await scene.turn({"role": hostile, "content": f"<b>{hostile}"}, assistant("b"), parent=first)
    page = await console.page(compared(f"turn:{one.id}", f"turn:{other.id}"))
    assert MARKUP in page.text
    assert "<script>alert" not in page.source
    assert not set("\u202e\u2066\x1b\x07\u200b") & set(page.source)


@pytest.mark.parametrize(
    ("left", "right", "status", "code"),
    [
        ("session:not-there", "session:talk", 404, "CWM-2001"),
        ("session:talk", "window:not-there", 404, "CWM-2002"),
        ("session:talk", "turn:not-there", 404, "CWM-2007"),
        ("session:talk", f"turn:{MARKUP}", 404, "CWM-2007"),
        ("session:talk", "tag:not-there", 404, "CWM-2007"),
        ("talk", "session:talk", 400, "CWM-1003"),
        (f"{MARKUP}:a", "session:talk", 400, "CWM-1003"),
    ],
)
async def test_what_cannot_be_compared_is_said_with_its_code(
    console: Console, left: str, right: str, status: int, code: str
) -> None:
    await a_small_talk(console.parts.base.registry, "talk", ("Hey?", "Ho."))
    page = await console.page(compared(left, right), status)
    assert f"{status} · {code}" in page.text
