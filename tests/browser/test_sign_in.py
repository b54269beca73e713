"""A person signs in at a real OpenID provider with a real browser, sees the own tenant, and signs out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.browser.visitor import Visitor, signs_in, visit
from tests.node.programs import Programs
from tests.transport.console.access.test_oauth import Deployment, deployed
from tests.transport.console.scenes import a_working_day

pytestmark = pytest.mark.browser


@pytest.fixture
async def deployment(programs: Programs, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with deployed(programs, tmp_path) as found:
        yield found


@pytest.fixture
async def visitor(browser: Browser, deployment: Deployment) -> AsyncIterator[Visitor]:
    async with visit(browser, deployment.running.url, deployment.issuer) as visiting:
        yield visiting


async def test_a_person_signs_in_looks_and_signs_out(
    deployment: Deployment, visitor: Visitor, axe: str
) -> None:
    day = await a_working_day(deployment.running.parts.base.registry, "acme")
    await signs_in(visitor, "alice")
    await expect(visitor.page.get_by_role("banner")).to_contain_text("alice")
    await visitor.open(f"/console/turns/{day['fifth'].id}")
    (cookie,) = [each for each in await visitor.page.context.cookies() if each["name"] == "cwm-console"]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Lax")
    assert await visitor.page.evaluate("document.cookie") == ""
    await visitor.page.get_by_role("button", name="Sign out").click()
    await expect(visitor.page.get_by_role("status")).to_have_text("You are signed out of this gateway.")
    assert await visitor.barriers(axe) == []
    await visitor.page.go_back()
    await visitor.page.reload()
    await expect(visitor.page.get_by_role("heading", name="Sign in")).to_be_visible()


async def test_a_person_of_another_tenant_is_told_of_nothing(
    deployment: Deployment, visitor: Visitor
) -> None:
    day = await a_working_day(deployment.running.parts.base.registry, "acme")
    await signs_in(visitor, "eve")
    for path in (
        "conversations/fix-flaky-login-test",
        f"turns/{day['fifth'].id}",
        "windows/login-fixed",
        f"compare?left=turn:{day['fifth'].id}&right=session:fix-flaky-login-test",
    ):
        answer = await visitor.page.context.request.get(f"{visitor.url}/console/{path}")
        assert answer.status == 404
        assert "flaky" not in (await answer.text()).replace("fix-flaky-login-test", "")
    for path in ("", "conversations", "windows"):
        await visitor.page.goto(f"{visitor.url}/console/{path}")
        assert "login" not in (await visitor.page.inner_text("main")).lower()


async def test_who_only_looks_is_offered_no_action(deployment: Deployment, visitor: Visitor) -> None:
    alice = f"{deployment.issuer}#alice"
    await a_working_day(deployment.running.parts.base.registry, "acme", owner=alice)
    await signs_in(visitor, "alice", "Sign in only to look")
    await expect(visitor.page.get_by_role("banner")).to_contain_text("only looks")
    await visitor.page.goto(f"{visitor.url}/console/windows/login-fixed")
    await expect(visitor.page.get_by_role("heading", name="login-fixed")).to_be_visible()
    await expect(visitor.page.get_by_role("list", name="Actions")).to_have_count(0)
    await visitor.page.goto(f"{visitor.url}/console/conversations/fix-flaky-login-test")
    await expect(visitor.page.get_by_text("goes on from a summary")).to_be_visible()
    await expect(visitor.page.get_by_role("link", name="Undo")).to_have_count(0)


async def test_a_key_is_made_shown_once_signs_in_and_is_revoked(
    browser: Browser, programs: Programs, tmp_path: Path
) -> None:
    async with (
        deployed(programs, tmp_path, api_keys=True) as found,
        visit(browser, found.running.url, found.issuer) as visitor,
    ):
        page = visitor.page
        await signs_in(visitor, "alice")
        await visitor.open("/console/keys")
        await page.get_by_role("link", name="Create a key").click()
        await page.get_by_label("Name of the machine").fill("ci")
        await page.get_by_label("windows:read").check()
        await page.get_by_role("button", name="Create a key").click()
        key = (await page.locator("main pre, main code").filter(has_text="cwm_").first.inner_text()).strip()
        async with visit(browser, found.running.url) as other:
            await other.page.goto(f"{other.url}/console/windows")
            await other.page.get_by_label("API key").fill(key)
            await other.page.get_by_role("button", name="Sign in").click()
            await other.page.wait_for_url(f"{other.url}/console/windows")
            await expect(other.page.get_by_role("banner")).to_contain_text("key:ci")
            await visitor.open("/console/keys")
            assert key not in await page.content()
            await page.get_by_role("link", name="Revoke").click()
            await page.get_by_role("button", name="Revoke").click()
            await expect(page.get_by_role("status")).to_have_text(
                "The key is revoked: every gateway refuses it."
            )
            await other.page.reload()
            await expect(other.page.get_by_role("heading", name="Sign in")).to_be_visible()
