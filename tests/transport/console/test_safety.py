"""What a browser is told about the console's pages, and pages in which everything is hostile."""

from __future__ import annotations

from pathlib import Path

import pytest

from cwm.domain.turn import Turn
from cwm.settings import Auth
from tests.transport.console.conftest import a_console
from tests.transport.console.reading import Console
from tests.transport.console.scenes import a_working_day, assistant, call, opened, result, user

TOKENS = Auth(oauth_issuer="https://issuer.test", public_url="https://cwm.test")
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
MARKUP = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7 * 7 }}"
UNSEEN = "a\u202eb\u2066c\x1bd\x07e\u200bf"
HOSTILE = f"{MARKUP}{UNSEEN}"


async def a_hostile_day(console: Console) -> Turn:
    scene = await opened(console.parts.base.registry, "hostile", metadata={MARKUP: HOSTILE})
    first = await scene.turn(user("hey"), assistant("ho"))
    turn = await scene.turn(
        {"role": HOSTILE, "content": HOSTILE},
        {"role": "user", "content": [{"type": HOSTILE, "text": HOSTILE}, {"type": "image_url", "image_url": {"url": MARKUP}}]},
        assistant(f"{HOSTILE}\n```{MARKUP}\n{HOSTILE}\n```", reasoning=HOSTILE, tool_calls=[call(HOSTILE, HOSTILE)]),
        result(HOSTILE),
        assistant(HOSTILE, tool_calls=["<b>", {"function": {"name": 7, "arguments": [HOSTILE]}}]),
        user(HOSTILE),
        {"role": "assistant", "content": {"nested": [MARKUP]}, MARKUP: MARKUP},
        parent=first,
        client=HOSTILE,
        diverged_at=1,
        cause="edited",
    )  # fmt: skip
    await scene.window(
        turn, "hostile-window", "cc01", description=HOSTILE.replace("\x1b", ""), tags=(MARKUP,)
    )
    return turn


async def test_whatever_others_wrote_is_shown_as_text(console: Console) -> None:
    turn = await a_hostile_day(console)
    for path in (
        "",
        "/conversations",
        "/conversations/hostile",
        "/conversations?q=script",
        f"/conversations?q={MARKUP.replace('{', '').replace(' ', '')}",
        f"/turns/{turn.id}",
        "/windows",
        "/windows/hostile-window",
        "/windows?q=%3Cscript%3E%22",
        "/keys",
        "/doctor",
    ):
        page = await console.page(path)
        assert len(page.all("script")) == 1, path
        assert all(each.attributes["src"].startswith("/console/static/") for each in page.all("img"))
        assert "<script>alert" not in page.source
        assert not set("\u202e\u2066\x1b\x07\u200b") & set(page.source), path


async def test_what_shows_nothing_is_shown_by_a_sign(console: Console) -> None:
    turn = await a_hostile_day(console)
    text = (await console.page(f"/turns/{turn.id}")).text
    assert MARKUP in text
    assert "a⟨U+202E⟩b⟨U+2066⟩c␛d␇e⟨U+200B⟩f" in text


async def test_files_are_named_by_their_contents_and_kept_for_ever(console: Console) -> None:
    page = await console.page()
    addresses = {
        page.one("script").attributes["src"],
        *(each.attributes["href"] for each in page.all("link")),
        page.one("img").attributes["src"],
    }
    types = set()
    for address in addresses:
        answer = await console.http.get(address)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["x-content-type-options"] == "nosniff"
        types.add(answer.headers["content-type"].partition(";")[0])
    assert types == {"text/css", "text/javascript", "image/svg+xml"}


async def test_the_script_is_short_and_the_style_loads_nothing(console: Console) -> None:
    page = await console.page()
    script = (await console.http.get(page.one("script").attributes["src"])).text
    style = (await console.http.get(page.one("link", rel="stylesheet").attributes["href"])).text
    assert len(script.splitlines()) <= 150
    assert "innerHTML" not in script
    assert "url(" not in style
    assert "@import" not in style
    for words in ("prefers-color-scheme: dark", "prefers-reduced-motion", ":focus-visible"):
        assert words in style


async def test_pages_of_other_sites_and_other_host_names_are_kept_out(console: Console) -> None:
    assert (await console.answer(origin="https://evil.example")).status_code == 403
    assert (await console.answer(host="evil.example")).status_code == 421
    answer = await console.answer()
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "same-origin"


async def test_nothing_is_changed_by_another_method(console: Console) -> None:
    await a_working_day(console.parts.base.registry)
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        answer = await console.http.request(method, "/console/windows/login-fixed")
        assert answer.status_code in {404, 405}
    assert (await console.http.head("/console")).status_code == 200


async def test_the_front_door_leads_a_browser_in_and_tells_everybody_else_the_faces(console: Console) -> None:
    to_page = await console.http.get("/", headers=BROWSER)
    assert (to_page.status_code, to_page.headers["location"]) == (303, "/console")
    assert to_page.headers["vary"] == "accept"
    agent = await console.http.get("/", headers={"accept": "*/*"})
    assert agent.status_code == 200
    assert agent.json()["faces"]["mcp"] == "/mcp"
    assert agent.json()["faces"]["console"] == "/console"
    probe = await console.http.head("/")
    assert (probe.status_code, probe.content) == (200, b"")


@pytest.mark.parametrize("auth", [Auth(), TOKENS], ids=["without sign-in", "with tokens alone"])
async def test_a_gateway_without_a_console_says_so_to_everybody(
    tmp_path: Path, sqlite_template: Path, auth: Auth
) -> None:
    async with a_console(tmp_path, sqlite_template, auth, console=auth.required) as gateway:
        for path in ("", "/conversations/s1", "/static/console.css"):
            answer = await gateway.answer(path, **BROWSER)
            assert answer.status_code == 404
            assert answer.json()["code"] == "CWM-1003"
            reason = "CWM_CONSOLE_CLIENT_ID" if auth.required else "CWM_CONSOLE is false"
            assert reason in answer.json()["message"]
        root = await gateway.http.get("/", headers=BROWSER)
        assert root.status_code == 200
        assert "console" not in root.json()["faces"]
        assert (await gateway.http.head("/")).status_code == 200
        if auth.required:
            for path in ("/consoles", "/consol", "/readyz2", "/v1/models"):
                assert (await gateway.http.get(path)).status_code == 401
