"""``cwm person …``: exports and deletes all of one person's data, straight from the stores. Needs no running gateway."""

from __future__ import annotations

import base64
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from cwm.cli.terminal.console import (
    Interrupts,
    JsonOption,
    confirm_deletion,
    end_with_json,
    load_settings,
    print_json_line,
    run_to_end,
)
from cwm.cli.terminal.wording import count
from cwm.domain.showable import shown

if TYPE_CHECKING:
    from cwm.services.upkeep.person import Person

T = TypeVar("T")

app = typer.Typer(
    no_args_is_help=True,
    help="Export and delete all of one person's data, straight from the database and the shared store.",
)

Subject = Annotated[
    str,
    typer.Argument(help="The person as `cwm sessions list` and the audit log name it.", metavar="SUBJECT"),
]
TenantOption = Annotated[
    str | None, typer.Option("--tenant", help="The person's tenant; default: CWM_TENANT.", metavar="TENANT")
]


@app.command()
def export(subject: Subject, tenant: TenantOption = None) -> None:
    """Print one JSON object a line: sessions, turns, windows, keys, stored results, shared context and audit records.

    A record that cannot be read whole has an "error", and the export goes on behind it.
    """

    async def write(person: Person, whose: str) -> int:
        unread = 0
        async for record in person.export(whose, subject):
            unread += "error" in record
            print_json_line(shown(record), _plain)
        return unread

    if unread := _with_person(tenant, write):
        what = f"{count(unread, 'record')} could not be read whole"
        print(f'{what}: look for an "error" in the lines of the export.', file=sys.stderr)


@app.command()
def delete(
    subject: Subject,
    tenant: TenantOption = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask for confirmation on a terminal.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete sessions, turns, windows, stored results and shared context, and revoke keys. Safe to stop and to repeat.

    Audit records stay: they are chained, and hold no contents.
    """
    confirm_deletion(f"all data of {subject}", yes=yes)
    counts = _with_person(tenant, lambda person, whose: person.delete(whose, subject))
    end_with_json(dict(counts), as_json=as_json)
    print(
        f"Deleted {count(counts['sessions'], 'session')}, {count(counts['windows'], 'window')}, "
        f"{count(counts['results'], 'stored result')} and {count(counts['context_keys'], 'key')} of shared context; "
        f"revoked {count(counts['keys'], 'API key')}. Audit records stay."
    )
    if counts["turns_elsewhere"]:
        print(
            f"{count(counts['turns_elsewhere'], 'turn')} in sessions of others stay: they are part of those."
        )
    if counts["immutable"]:
        print(f"{count(counts['immutable'], 'immutable key')} of shared context stay.")


def _with_person(tenant: str | None, work: Callable[[Person, str], Awaitable[T]]) -> T:
    settings = load_settings(upstreams=False, tenant=tenant)

    async def run(_: Interrupts) -> T:
        from cwm.adapters.sql.api_keys import SqlApiKeys
        from cwm.app import opened
        from cwm.services.upkeep.person import Person

        async with opened(settings) as parts:
            base, engine_side, agent_side = parts.base, parts.engine_side, parts.agent_side
            person = Person(
                registry=base.registry,
                delete_window=engine_side.delete,
                end_session=engine_side.end_session,
                keys=SqlApiKeys(base.database),
                results=agent_side.results,
                responses=engine_side.pass_through.responses.records,
                conversations=engine_side.pass_through.responses.conversations.records,
                tasks=agent_side.upstream_tasks.records,
                context=agent_side.context,
                trail=base.audit_upkeep.trail,
                journal=base.journal,
            )
            return await work(person, settings.isolation.tenant)

    return run_to_end(run)


def _plain(value: Any) -> Any:
    """JSON for bytes, as text where they are text, for times and for sets."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    return value.isoformat() if isinstance(value, datetime) else sorted(value)
