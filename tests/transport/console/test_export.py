"""Transcripts as files: from a turn, a conversation and a window, to read or as the messages of an API."""

from __future__ import annotations

import json

import pytest

from cwm.domain.principal import Principal
from cwm.domain.turn import TurnSource
from cwm.transport.mcp.contract.render.turns import turn_shown
from tests.transport.console.reading import POLICY, Console
from tests.transport.console.scenes import a_small_talk, a_working_day, assistant, opened, user
from tests.transport.console.test_safety import HOSTILE

pytestmark = pytest.mark.slow

LOCAL = Principal("default", "local")


async def saved(console: Console, path: str, name: str, media_type: str) -> str:
    """A file, which is downloaded under this name, never shown, and kept by nobody."""
    answer = await console.answer(path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
    assert answer.headers["content-type"] == media_type
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == POLICY
    return answer.text


async def test_a_turn_is_saved_to_read(console: Console) -> None:
    day = await a_working_day(console.parts.base.registry)
    page = await console.page(f"/turns/{day['second'].id}")
    text = await saved(
        console,
        page.links["text"].removeprefix("/console"),
        "fix-flaky-login-test.turn-3.txt",
        "text/plain; charset=utf-8",
    )
    assert text.startswith("[system]\nYou are a careful coding agent.")
    assert "[tool]\ndef test_login(client, clock):" in text
    assert text.endswith('Grep({"pattern": "ttl=1", "path": "tests"})\n\n')


@pytest.mark.parametrize("message_format", ["openai", "anthropic"])
async def test_what_is_saved_is_what_the_tool_shows(console: Console, message_format: str) -> None:
    day = await a_working_day(console.parts.base.registry)
    shown = await console.parts.services.history.show(LOCAL, TurnSource(turn_id=day["third"].id))
    told = turn_shown(shown, message_format)
    text = await saved(
        console,
        f"/windows/login-race-found/export?as={message_format}",
        f"login-race-found.{message_format}.json",
        "application/json",
    )
    assert json.loads(text) == {name: told[name] for name in ("system", "messages") if name in told}
    assert ("system" in json.loads(text)) == (message_format == "anthropic")


async def test_a_conversation_is_saved_as_it_is_now(console: Console) -> None:
    await a_working_day(console.parts.base.registry)
    page = await console.page("/conversations/fix-flaky-login-test")
    text = await saved(
        console,
        page.links["OpenAI's messages"].removeprefix("/console"),
        "fix-flaky-login-test.openai.json",
        "application/json",
    )
    assert json.loads(text)["messages"][-1]["content"] == "It is open: #418."


async def test_a_tag_names_what_is_saved(console: Console) -> None:
    await a_working_day(console.parts.base.registry)
    await saved(
        console, "/turns/tag:green/export", "fix-flaky-login-test.turn-9.txt", "text/plain; charset=utf-8"
    )


async def test_what_was_said_is_saved_word_for_word(console: Console) -> None:
    scene = await opened(console.parts.base.registry, "hostile")
    turn = await scene.turn(user(HOSTILE), assistant("half of a pair: \ud83d."))
    name = "hostile.turn-1.openai.json"
    text = await saved(console, f"/turns/{turn.id}/export?as=openai", name, "application/json")
    said = [message["content"] for message in json.loads(text)["messages"]]
    assert said == [HOSTILE, "half of a pair: \ud83d."]


async def test_a_file_says_that_nothing_was_recorded(console: Console) -> None:
    scene = await opened(console.parts.base.registry, "silent")
    turn = await scene.turn()
    text = await saved(console, f"/turns/{turn.id}/export", "silent.turn-1.txt", "text/plain; charset=utf-8")
    assert text.startswith("This context was recorded without messages")
    assert "export" not in str((await console.page(f"/turns/{turn.id}")).links)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/turns/not-there/export", 404, "CWM-2007"),
        ("/turns/no%20turn/export", 404, "CWM-2007"),
        ("/windows/not-there/export", 404, "CWM-2002"),
        ("/conversations/not-there/export", 404, "CWM-2001"),
        ("/conversations/empty/export", 404, "CWM-2007"),
        ("/conversations/talk/export?as=pdf", 400, "CWM-1003"),
    ],
)
async def test_what_cannot_be_saved_is_said_on_a_page(
    console: Console, path: str, status: int, code: str
) -> None:
    await a_small_talk(console.parts.base.registry, "talk", ("Hey?", "Ho."))
    await opened(console.parts.base.registry, "empty")
    page = await console.page(path, status)
    assert f"{status} · {code}" in page.text
