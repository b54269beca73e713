from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, async_playwright

from cwm.transport.console.turns import conversations
from tests.browser.chromium import ARGUMENTS, MISSING, chromium
from tests.browser.house import House, a_house, furnished
from tests.browser.visitor import Visitor, visit
from tests.node.programs import installed


@pytest.fixture(autouse=True)
def _patient_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search ends with what there is, however busy the machine."""
    monkeypatch.setattr(conversations, "_SEARCH_SECONDS", 600.0)


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One a run; a test that wants it is skipped where there is none."""
    program = chromium()
    if program is None:
        pytest.skip(MISSING)
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield launched
        await launched.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The program that reads pages as assistive programs do."""
    package = installed(Path(__file__).parent / "package.json").folder / "node_modules" / "axe-core"
    return (package / "axe.min.js").read_text()


@pytest.fixture(scope="module")
async def house(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path
) -> AsyncIterator[House]:
    """A gateway on a socket, in whose pages something is to be seen. Its tests only look."""
    async with a_house(tmp_path_factory.mktemp("house"), sqlite_template) as served, furnished(served):
        yield served


@pytest.fixture
async def visitor(browser: Browser, house: House) -> AsyncIterator[Visitor]:
    async with visit(browser, house.url) as visiting:
        yield visiting
