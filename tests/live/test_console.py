"""A person with a real browser acts on what the real engine computed: freeze, thaw, branch, go back, delete."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import openai
import pytest
from playwright.async_api import Page, async_playwright, expect

from tests.browser.chromium import chromium
from tests.browser.visitor import Visitor, visit
from tests.live.conftest import LiveGateway
from tests.live.talk import RefusedError, Talk, talk

pytestmark = pytest.mark.live

FACTS = "The password is 4711. " + " ".join(f"Item {i} is {i * 7 % 13}." for i in range(60))


@pytest.fixture
async def visitor(gateway: LiveGateway) -> AsyncIterator[Visitor]:
    program = chromium()
    if program is None:
        pytest.skip("There is no Chromium here; make test-console installs one.")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        async with visit(browser, gateway.url) as visiting:
            visiting.page.set_default_timeout(60_000)
            yield visiting
        await browser.close()


@pytest.fixture
async def agent(gateway: LiveGateway) -> AsyncIterator[Talk]:
    async with talk(gateway.url, gateway.model) as client:
        yield client


async def asked(gateway: LiveGateway, session_id: str, messages: list[Any]) -> tuple[int, list[Any]]:
    """How many tokens of the prompt the engine had, and the conversation with the answer."""
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", timeout=120) as sdk:
        raw = await sdk.chat.completions.with_raw_response.create(
            model=gateway.model,
            messages=messages,
            max_tokens=8,
            temperature=0,
            extra_body={"ignore_eos": True},
            extra_headers={"CWM-Session-Id": session_id},
        )
    answer = raw.parse().choices[0].message.to_dict()
    return int(raw.headers["cwm-cached-tokens"]), [*messages, answer]


async def acts(page: Page, verb: str, **fields: str) -> None:
    """Follow the action's link, fill in the form on its page, and press the button."""
    await page.get_by_role("list", name="Actions").get_by_role("link", name=verb, exact=True).click()
    for label, value in fields.items():
        await page.get_by_label(re.compile(label, re.IGNORECASE)).first.fill(value)
    await page.locator("form.confirm").get_by_role("button", name=verb, exact=True).click()


async def test_a_person_freezes_thaws_and_goes_on_from_a_page(
    gateway: LiveGateway, visitor: Visitor, agent: Talk
) -> None:
    session, window, thawed = (f"{kind}-{uuid4().hex[:8]}" for kind in ("talk", "kept", "again"))
    _, said = await asked(gateway, session, [{"role": "user", "content": f"{session} {FACTS}"}])
    page = visitor.page
    await visitor.open(f"/console/conversations/{session}")
    await acts(page, "Freeze", name=window)
    await expect(page.locator("p.notice")).to_have_text(
        "The window is there, and its blocks are proven to be stored."
    )
    await expect(page.get_by_role("heading", level=1)).to_have_text(window)
    await visitor.open(f"/console/windows/{window}")
    await acts(page, "Thaw", **{"id of the new": thawed})
    await expect(page.locator("p.notice")).to_have_text(
        "The conversation is open, and goes on from the window."
    )
    await visitor.open(f"/console/windows/{window}")
    receipt = page.locator(".receipts .item")
    await expect(receipt).to_contain_text(thawed)
    await expect(receipt).to_contain_text("canary: exact")
    restored = int(
        re.sub(r"\D", "", (await receipt.inner_text()).split("tokens restored")[0].splitlines()[-1])
    )
    cached, _ = await asked(gateway, thawed, [*said, {"role": "user", "content": "What is the password?"}])
    assert cached >= restored > 0


async def test_a_person_branches_goes_back_and_deletes_from_a_page(
    gateway: LiveGateway, visitor: Visitor, agent: Talk
) -> None:
    session, branch, window = (f"{kind}-{uuid4().hex[:8]}" for kind in ("talk", "other", "kept"))
    _, said = await asked(gateway, session, [{"role": "user", "content": f"{session} {FACTS}"}])
    await asked(gateway, session, [*said, {"role": "user", "content": "This was a mistake."}])
    turns = (await agent.tool("turn_log", session_id=session))["turns"]
    second, first = (each["id"] for each in turns)
    page = visitor.page
    await visitor.open(f"/console/turns/{first}")
    await acts(page, "Tag", name="before-the-mistake")
    await visitor.open(f"/console/turns/{first}")
    await acts(page, "Branch", id=branch)
    cached, _ = await asked(gateway, branch, [*said, {"role": "user", "content": "What is the password?"}])
    assert cached > 0
    await visitor.open(f"/console/turns/{first}")
    await acts(page, "Go back to it")
    await expect(page.locator("p.notice")).to_have_text("The conversation goes on here.")
    await visitor.open(f"/console/turns/{second}")
    await acts(page, "Delete")
    left = (await agent.tool("turn_log", session_id=session))["turns"]
    assert [each["id"] for each in left] == [first]
    await visitor.open(f"/console/conversations/{session}")
    await acts(page, "Freeze", name=window)
    await visitor.open(f"/console/windows/{window}")
    await page.get_by_role("list", name="Actions").get_by_role("link", name="Delete").click()
    await expect(page.get_by_role("main")).to_contain_text(re.compile(r"free|stay"))
    await page.get_by_role("button", name="Delete").click()
    await expect(page.locator("p.notice")).to_have_text("The window is deleted.")
    with pytest.raises(RefusedError, match="CWM-2002"):
        await agent.tool("window_status", window_name=window)
