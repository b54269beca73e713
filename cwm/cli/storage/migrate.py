"""``cwm migrate``: upgrades the registry's schema to this version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cwm.cli.terminal.console import Interrupts, load_settings, run_to_end, tell

if TYPE_CHECKING:
    from cwm.settings import Settings

_CHAINED: Final = "0007"
"""The migration that chains the audit records of older versions."""


def migrate() -> None:
    """Upgrade the registry's database to this version's schema (CWM_DATABASE_URL or CWM_DB_PATH).

    Applies every missing migration, or none. Safe to repeat, and to run from several machines at once. Audit records
    from before there was a chain are signed with the gateways' secret.
    """
    settings = load_settings(upstreams=False)

    async def work(_: Interrupts) -> list[str]:
        from cwm.adapters.sql import schema
        from cwm.cli.serve import log_as

        log_as(settings)
        applied = await schema.upgrade(settings.database.url())
        lines = [f"Applied {revision}." for revision in applied]
        if _CHAINED in applied:
            lines += await _sign_carried(settings)
        return lines

    for line in run_to_end(work):
        tell(line)
    tell("The schema is up to date.")


async def _sign_carried(settings: Settings) -> list[str]:
    """Sign what this migration carried over: nobody can have put anything in its place yet."""
    from cwm.cli.audit.document import signed_of
    from cwm.settings import SettingsError
    from cwm.wiring.audit import opened_signing

    try:
        async with opened_signing(settings) as (sign_carried, trail):
            results = [await sign_carried(tenant) for tenant in await trail.tenants()]
    except SettingsError as error:
        return [f"The older audit records are not signed: {error} Run `cwm audit sign` where the secret is."]
    return [f"Audit log of {signed_of(signing.value, verdict)}" for signing, verdict in results]
