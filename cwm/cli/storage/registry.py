"""``cwm registry``: encrypts what the registry holds. It needs no running gateway, and disturbs none."""

from __future__ import annotations

from collections import Counter

import typer

from cwm.cli.terminal.console import FOUND_FAULTS, USAGE, Interrupts, fail, load_settings, run_to_end
from cwm.cli.terminal.wording import count

app = typer.Typer(
    no_args_is_help=True, help="Work on the registry's database (CWM_DATABASE_URL or CWM_DB_PATH)."
)


@app.callback()
def _registry() -> None:
    """Makes ``encrypt`` a command of its own."""


@app.command()
def encrypt() -> None:
    """Encrypt with the first key of CWM_REGISTRY_KEY what is stored in the clear or with one of the others.

    Gateways must have that key already; they may run. Safe to stop and to repeat.
    """
    settings = load_settings(upstreams=False)
    keys = settings.database.registry_keys()
    if not keys:
        fail("CWM-1003", "There is no key: set CWM_REGISTRY_KEY or CWM_REGISTRY_KEY_FILE.", USAGE)

    async def work(_: Interrupts) -> Counter[str]:
        from cwm.adapters.sql import schema
        from cwm.adapters.sql.database import open_database
        from cwm.adapters.sql.reseal import Reseal
        from cwm.adapters.sql.vault import Vault

        database = open_database(settings.database.url())
        try:
            await schema.require_current(database)
            return Counter([noun async for noun in Reseal(database, Vault(keys))()])
        finally:
            await database.dispose()

    counts = run_to_end(work)
    nouns = [count(counts[noun], noun) for noun in ("session", "snapshot", "response", "conversation")]
    print(f"Encrypted {nouns[0]}, {nouns[1]}, {nouns[2]} and {nouns[3]}.")
    if counts["damaged"]:
        print(f"{counts['damaged']} more are damaged and stay as they are.")
        raise typer.Exit(FOUND_FAULTS)
