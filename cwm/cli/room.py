"""``cwm room``: keep the tiers of an engine that ``cwm up`` did not start from filling up."""

from __future__ import annotations

from cwm.cli.console import Interrupts, load_settings, run_to_end


def room() -> None:
    """Keep room in the disk tier of an engine that runs elsewhere, and in its Valkey where CWM_REDIS_URL names it.

    Removes, through CWM_LMCACHE_URL, what nobody froze and was not used for longest. The disk tier is the folder
    `kv` in CWM_STORAGE_PATH, which is only read. That Valkey has a maxmemory and is this engine's alone.
    `cwm up` does so by itself.
    """
    settings = load_settings(upstreams=False)

    async def work(_: Interrupts) -> None:
        from cwm.cli.up import log
        from cwm.stack.errors import StackError
        from cwm.stack.redis_url import RedisAddress
        from cwm.stack.room import Room

        engine, storage = settings.engine, settings.storage
        if not engine.has_lmcache:
            raise StackError("there is nothing to keep room in without LMCache: CWM_LMCACHE_URL is none.")
        valkey = RedisAddress.parse(storage.redis_url.get_secret_value()) if storage.redis_url else None
        folder = storage.storage_path / "kv"
        urls = (engine.coordinator_url, engine.lmcache_url)
        log(f"keeps room in {folder}{f' and in the Valkey at {valkey}' if valkey else ''}")
        await Room(valkey, folder, storage.disk_cache_gb, urls, log).keep()

    run_to_end(work)
