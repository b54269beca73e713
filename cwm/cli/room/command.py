"""``cwm room``: keeps space free in the tiers of an engine that ``cwm up`` did not start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cwm.cli.terminal.console import Interrupts, load_settings, run_to_end


def room(
    alive: Annotated[
        Path | None,
        typer.Option(
            help="Touch this file after every successful check: for the health check of a container."
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve /metrics for Prometheus, and /healthz, without authentication, at this address.",
        ),
    ] = None,
) -> None:
    """Keep space free in the disk tier of an engine that runs elsewhere, and in its Valkey if CWM_REDIS_URL names it.

    Removes, through CWM_LMCACHE_URL, the longest unused chunks that belong to no window. The disk tier is the
    folder `kv` in CWM_STORAGE_PATH, which this command only reads; `kv-2` and so on are those of other engines, each with a `cwm room` of its
    own. The Valkey must have a maxmemory and serve these engines alone. `cwm up` does all this by itself.
    """
    settings = load_settings(upstreams=False)

    async def work(_: Interrupts) -> None:
        from cwm.cli.room.metrics import serving
        from cwm.cli.serve import log_as
        from cwm.cli.up import log
        from cwm.stack.errors import StackError
        from cwm.stack.redis_url import RedisAddress
        from cwm.stack.room import Room

        log_as(settings)
        engine, storage = settings.engine, settings.storage
        if not engine.has_lmcache:
            raise StackError("without LMCache there are no tiers to keep free: CWM_LMCACHE_URL is none.")
        valkey = RedisAddress.parse(storage.redis_url.get_secret_value()) if storage.redis_url else None
        folder = storage.storage_path / "kv"
        urls = (engine.coordinator_url, engine.lmcache_url)
        others = sorted(storage.storage_path.glob("kv-[0-9]*"))
        keeper = Room(valkey, folder, storage.disk_cache_gb, urls, log, others=others, alive=alive)
        with serving(metrics, keeper.tiers):
            log(f"keeps room in {folder}{f' and in the Valkey at {valkey}' if valkey else ''}")
            await keeper.keep()

    run_to_end(work)
