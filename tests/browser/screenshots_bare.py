"""Draws a gateway that nobody used yet, its sign-in, and the pages of errors."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Browser, Page

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.sql.api_keys import SqlApiKeys
from cwm.app import create_app
from cwm.domain.access import EVERY, AccessScope
from cwm.services.access.machine_keys import MachineKeys
from cwm.settings import ABSENT, Auth, Database, Engine, Isolation, Retention, Settings
from tests.transport.mcp.gateway import nobody_listens, serving

_EMPTY: Final = (
    *("", "/conversations", "/windows", "/engines", "/upstreams"),
    *("/context", "/results", "/keys", "/audit?event=none", "/doctor", "/compare"),
)
_READING: Final = frozenset({AccessScope.WINDOWS_READ, AccessScope.CONTEXT_READ})


@dataclass(frozen=True)
class Bare:
    """A gateway where people sign in with ``root``, who may do everything, or ``reader``, who only looks."""

    url: str
    keys: MachineKeys
    root: str
    reader: str

    async def draw(self, browser: Browser, folder: Path, how: dict[str, Any]) -> int:
        """The number of pictures that are in ``folder`` now."""
        page = await browser.new_page(reduced_motion="reduce", **how)
        count = 0

        async def shoot(name: str, path: str | None = None, status: int = 200) -> None:
            nonlocal count
            if path is not None:
                answer = await page.goto(f"{self.url}/console{path}", wait_until="load")
                assert answer is not None
                assert answer.status == status, f"{path}: {answer.status}"
            await page.screenshot(path=folder / f"{name}.png", full_page=True)
            count += 1

        await shoot("sign-in", "/sign-in")
        await self._sign_in(page, "cwm_wrong")
        await shoot("sign-in-refused")
        await self._sign_in(page, self.root)
        for path in _EMPTY:
            await shoot(f"empty{path.partition('?')[0].replace('/', '-') or '-overview'}", path)
        await shoot("error-404", "/conversations/gone", 404)
        await shoot("error-400", "/audit?before=x", 400)
        key, _ = await self.keys.create("default", "old", _READING, timedelta(days=1))
        await page.goto(f"{self.url}/console/keys/{key.key_id}/revoke", wait_until="load")
        await self.keys.revoke("default", key.key_id)
        await page.locator("form.confirm button").click()
        await page.wait_for_load_state("load")
        await shoot("error-409-stale")
        await self._sign_in(page, self.reader)
        await shoot("error-403-look-only", "/keys/create", 403)
        await page.close()
        return count

    async def _sign_in(self, page: Page, key: str) -> None:
        await page.context.clear_cookies()
        await page.goto(f"{self.url}/console/sign-in", wait_until="load")
        await page.locator("#key").fill(key)
        await page.locator("#key").press("Enter")
        await page.wait_for_load_state("load")


@asynccontextmanager
async def bare(folder: Path, template: Path) -> AsyncIterator[Bare]:
    path = Path(shutil.copy(template, folder / "bare.db"))
    with nobody_listens() as away:
        settings = Settings(
            auth=Auth(api_keys=True),
            database=Database(db_path=path),
            engine=Engine(vllm_url=away, lmcache_url=ABSENT, coordinator_url=ABSENT),
            isolation=Isolation(secret="a test's secret"),
            retention=Retention(reconcile_seconds=86_400, patrol_windows=0),
        )
        app = create_app(settings)
        base = app.state.parts.base
        keys = MachineKeys(SqlApiKeys(base.database), base.audit, SystemClock())
        async with serving(app, app.state.end_streams) as url:
            _, root = await keys.create("default", "root", EVERY, timedelta(days=1))
            _, reader = await keys.create("default", "reader", _READING, timedelta(days=1))
            yield Bare(url, keys, root, reader)
