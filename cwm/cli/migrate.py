"""``cwm migrate``: upgrades the registry's schema to this version."""

from __future__ import annotations

from cwm.cli.console import Interrupts, load_settings, run_to_end


def migrate() -> None:
    """Upgrade the registry's database to this version's schema (CWM_DATABASE_URL or CWM_DB_PATH).

    Applies every missing migration, or none. Safe to repeat, and to run from several machines at once.
    """
    settings = load_settings(upstreams=False)

    async def work(_: Interrupts) -> list[str]:
        from cwm.adapters.sql import schema

        return await schema.upgrade(settings.database.url())

    applied = run_to_end(work)
    for revision in applied:
        print(f"Applied {revision}.")
    print("The schema is up to date.")
