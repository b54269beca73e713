"""``make screenshots``: draws every page of the console, light and dark, wide and narrow, for whoever builds them to look at.

Those of a gateway that nobody used yet, of its sign-in and of errors are in folders of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import re
import shutil
import sys
import tempfile
from collections.abc import Container
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Browser, async_playwright

from cwm.adapters.sql import schema
from tests.browser.chromium import ARGUMENTS, MISSING, chromium
from tests.browser.house import House, a_house, furnished
from tests.browser.screenshots_bare import bare

_FOLDER: Final = Path("build/screenshots")
_PICTURE: Final = Path("docs/console.png")
_SIZES: Final = {"wide": (1280, 900), "narrow": (360, 740)}
_SCHEMES: Final = ("light", "dark")


async def draw(folder: Path, picture: Path | None) -> int:
    """The number of pictures that are in ``folder`` now. ``picture``: where to put the one of README.md."""
    program = chromium()
    if program is None:
        raise SystemExit(MISSING)
    with tempfile.TemporaryDirectory() as temporary:
        template = Path(temporary, "template.db")
        await schema.upgrade(f"sqlite:///{template}")
        async with (
            async_playwright() as playwright,
            a_house(Path(temporary), template) as house,
            furnished(house),
            bare(Path(temporary), template) as empty,
        ):
            browser = await playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
            count = 0
            for scheme in _SCHEMES:
                for size, (width, height) in _SIZES.items():
                    say(f"{size}, {scheme}: {len(house.pages())} pages ...")
                    how = {"color_scheme": scheme, "viewport": {"width": width, "height": height}}
                    count += await drawn(browser, house, folder / f"{size}-{scheme}", how)
                    count += await empty.draw(browser, folder / f"{size}-{scheme}-bare", how)
            if picture is not None:
                await _draw_picture(browser, house, picture)
            await browser.close()
    return count


async def drawn(browser: Browser, house: House, folder: Path, how: dict[str, Any]) -> int:
    page = await browser.new_page(reduced_motion="reduce", **how)
    names: set[str] = set()
    for path in house.pages():
        name = name_of(path, names)
        names.add(name)
        await page.goto(f"{house.url}{path}", wait_until="load")
        await page.screenshot(path=folder / f"{name}.png", full_page=True)
    await page.close()
    return len(names)


async def _draw_picture(browser: Browser, house: House, picture: Path) -> None:
    page = await browser.new_page(viewport={"width": 1120, "height": 980}, color_scheme="light")
    await page.goto(f"{house.url}/console/conversations/fix-flaky-login-test", wait_until="load")
    await page.screenshot(path=picture)
    await page.close()


def name_of(path: str, taken: Container[str]) -> str:
    """The name of a page's picture: its address below ``/console``, without what changes from run to run."""
    short = re.sub(r"turn_[0-9a-f]{32}", "turn", path.removeprefix("/console").strip("/"))
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", short)[:80] or "overview"
    names = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
    return next(each for each in names if each not in taken)


def say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw every page of the console.")
    parser.add_argument(
        "--readme", action="store_true", help=f"draw the picture of README.md, too: {_PICTURE}"
    )
    say("Starting a gateway with a day of conversations, and a browser ...")
    given = parser.parse_args()
    shutil.rmtree(_FOLDER, ignore_errors=True)
    count = asyncio.run(draw(_FOLDER, _PICTURE if given.readme else None))
    say(f"{count} pictures are in {_FOLDER}/." + (f" {_PICTURE} is new." if given.readme else ""))


if __name__ == "__main__":
    main()
