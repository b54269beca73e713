"""Pages full of what attackers write: it is shown as text, and nothing of it runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from cwm.services.context.requests import Setting
from tests.adapters.upstream.bad_server import bad_server
from tests.browser.house import House, a_house
from tests.browser.visitor import visit
from tests.transport.console import test_audit, test_kept, test_safety, test_upstreams
from tests.transport.console.scenes import a_small_talk, assistant, opened, user
from tests.transport.console.test_safety import HOSTILE, MARKUP

pytestmark = pytest.mark.browser

LINE = "<b>x</b>" * 131_072
PAYLOAD = f"{MARKUP}</p></main></body><svg onload=alert(3)><a href=javascript:alert(4)>here</a>"


@pytest.fixture
async def hostile(tmp_path: Path, sqlite_template: Path) -> AsyncIterator[tuple[House, list[str]]]:
    """A gateway in which everything that others may write is hostile, and its pages."""
    async with a_house(tmp_path, sqlite_template) as house, bad_server() as server:
        console, context = house.console, house.console.parts.services.shared_context
        turn = await test_safety.a_hostile_day(console)
        scene = await opened(console.parts.base.registry, "long-line")
        long = await scene.turn(user(LINE), assistant(PAYLOAD, reasoning=LINE))
        await a_small_talk(console.parts.base.registry, "small", (PAYLOAD, HOSTILE))
        await context.set(test_kept.OTHER, test_kept.TENANT, Setting(f"k{MARKUP}", PAYLOAD))
        await test_kept.stored(console, test_kept.LOCAL, PAYLOAD[:100])
        await test_audit.record(
            console,
            PAYLOAD,
            subject=PAYLOAD,
            session_id=PAYLOAD,
            window_name=PAYLOAD,
            details={PAYLOAD: PAYLOAD},
        )
        test_upstreams.offering(server, test_upstreams.a_tool("read", PAYLOAD))
        await test_upstreams.configured(console, server.spec(name="files"))
        yield (
            house,
            [
                "",
                *("/conversations", "/conversations?q=script", "/conversations/hostile", "/conversations/long-line"),
                *("/conversations/small", f"/turns/{turn.id}", f"/turns/{long.id}", "/windows", "/windows/hostile-window"),
                f"/compare?left=turn:{turn.id}&right=turn:{long.id}",
                *("/context", "/context/tenant", "/results", "/audit", "/upstreams", "/engines"),
            ],
        )  # fmt: skip


async def test_nothing_that_others_wrote_runs_or_breaks_out(
    browser: Browser, hostile: tuple[House, list[str]]
) -> None:
    house, pages = hostile
    async with visit(browser, house.url, viewport={"width": 360, "height": 740}) as visitor:
        page = visitor.page
        for path in pages:
            await visitor.open(f"/console{path}")
            # One script, which is ours; each picture is ours; nothing was put behind the end of the page.
            await expect(page.locator("script")).to_have_count(1)
            await expect(page.locator("main")).to_have_count(1)
            await expect(page.locator("[onerror], [onload], a[href^='javascript:'], main b")).to_have_count(0)
            await expect(page.locator("img:not([src^='/console/static/'])")).to_have_count(0)
            await page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
            assert await visitor.overflow() <= 0, path
        await visitor.open("/console/audit")
        await expect(page.get_by_text(PAYLOAD).first).to_be_visible()
