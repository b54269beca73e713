from __future__ import annotations

import asyncio
import time

from cwm.adapters.telemetry.event_loop import watch_event_loop


async def test_what_holds_the_event_loop_up_is_told_as_its_lag() -> None:
    lags: asyncio.Queue[float] = asyncio.Queue()
    watching = asyncio.create_task(watch_event_loop(lags.put_nowait, interval_seconds=0.001))
    async with asyncio.timeout(5):
        await lags.get()
        time.sleep(0.03)  # noqa: ASYNC251 - that is what is to be seen
        while await lags.get() < 0.02:
            pass
    watching.cancel()
    await asyncio.wait({watching})
