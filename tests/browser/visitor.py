"""A person with a browser: what they see, press and hear, and whatever goes wrong while they do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from playwright.async_api import Browser, ConsoleMessage, Page, Request

_BOUND_MS: Final = 15_000
_REPORTS: Final = """document.addEventListener("securitypolicyviolation",
    event => console.error("refused by the policy:", event.violatedDirective, event.blockedURI))"""
# As clicks come up from what was clicked: those at what the page has just replaced are stopped on their way down, and tried again.
_CLICKS: Final = "addEventListener('click', event => event.isTrusted && counted())"
_SERIOUS: Final = frozenset({"serious", "critical"})


@dataclass
class Visitor:
    """``problems``: errors in the browser's console, refusals by the policy, and requests to anybody else; without what is the ``provider``'s, where people sign in.

    ``clicks``: how often they clicked, as the browser says; nothing is counted without script.
    """

    page: Page
    url: str
    provider: str = ""
    clicks: int = 0
    problems: list[str] = field(default_factory=list)

    async def open(self, path: str = "/console") -> None:
        """The page is there and whole. AssertionError where it is none."""
        answer = await self.page.goto(f"{self.url}{path}", wait_until="load")
        assert answer is not None
        assert answer.status == 200, f"{path}: {answer.status}"

    async def follow(self, name: str) -> None:
        """Click the first link of this name and wait for where it leads."""
        await self.page.get_by_role("link", name=name).first.click()
        await self.page.wait_for_load_state("load")

    async def copied(self) -> str:
        return str(await self.page.evaluate("navigator.clipboard.readText()"))

    async def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        return int(await self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))

    async def barriers(self, axe: str) -> list[str]:
        """What keeps people out, as axe finds it: only what is serious."""
        await self.page.evaluate(axe)
        found: dict[str, Any] = await self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{each['id']}: {each['help']}: {each['nodes'][0]['html'][:200]}"
            for each in found["violations"]
            if each["impact"] in _SERIOUS
        ]

    def count(self) -> None:
        self.clicks += 1

    def hear(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not self._is_providers(self.page.url):
            self.problems.append(message.text)

    def see(self, request: Request) -> None:
        is_providers = self._is_providers(request.url) or self._is_providers(request.frame.url)
        if not request.url.startswith(f"{self.url}/") and not is_providers:
            self.problems.append(f"a request to {request.url}")

    def _is_providers(self, address: str) -> bool:
        """Whether it is the provider's own affair."""
        return bool(self.provider) and address.startswith(f"{self.provider}/")


@asynccontextmanager
async def visit(browser: Browser, url: str, provider: str = "", **how: Any) -> AsyncIterator[Visitor]:
    """A visit with a fresh profile. It fails at its end where something went wrong during it."""
    context = await browser.new_context(permissions=["clipboard-read", "clipboard-write"], **how)
    context.set_default_timeout(_BOUND_MS)
    await context.add_init_script(_REPORTS)
    await context.add_init_script(_CLICKS)
    page = await context.new_page()
    visitor = Visitor(page, url, provider)
    await page.expose_function("counted", visitor.count)
    page.on("console", visitor.hear)
    page.on("pageerror", lambda error: visitor.problems.append(str(error)))
    page.on("dialog", lambda dialog: visitor.problems.append(f"a dialog: {dialog.message}"))
    page.on("request", visitor.see)
    yield visitor
    await context.close()
    assert visitor.problems == [], visitor.problems


async def signs_in(visitor: Visitor, login: str, link: str = "Sign in with your account") -> None:
    """At the provider, on the way to the windows that have to do with a login."""
    page = visitor.page
    await page.goto(f"{visitor.url}/console/windows?q=login")
    await page.get_by_role("link", name=link).click()
    await page.get_by_placeholder("Enter any login").fill(login)
    await page.get_by_placeholder("and password").fill("any")
    await page.get_by_role("button", name="Sign-in").click()
    await page.get_by_role("button", name="Continue").click()
    await page.wait_for_url(f"{visitor.url}/console/windows?q=login")
