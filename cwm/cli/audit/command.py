"""``cwm audit``: verifies, lists and exports the audit log from the database. It needs no running gateway."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from cwm.cli.audit.document import document_of, finding_of, signed_of, verdict_of
from cwm.cli.gateway.client import JsonOption
from cwm.cli.terminal.console import (
    FOUND_FAULTS,
    USAGE,
    Interrupts,
    end_with_json,
    fail,
    load_settings,
    print_json,
    print_json_line,
    print_table,
    run_to_end,
)

if TYPE_CHECKING:
    from cwm.domain.audit_chain import ChainKeys, Checkpoint
    from cwm.domain.audit_check import Verdict
    from cwm.ports.audit import AuditTrail
    from cwm.services.audit.sign import Signing
    from cwm.settings import Settings

app = typer.Typer(
    no_args_is_help=True,
    help="Verify, sign, list and export the audit log, straight from the database (CWM_DATABASE_URL or CWM_DB_PATH).",
)

_PAGE = 1_000
_CHECKPOINT = re.compile(r"(.+):([1-9][0-9]{0,17}):([0-9a-fA-F]{64})")


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise typer.BadParameter("must be a moment such as 2026-01-31 or 2026-01-31T12:00:00Z") from None


TenantOption = Annotated[str | None, typer.Option(help="One tenant's records only; default: every tenant's.")]
SinceOption = Annotated[
    datetime | None,
    typer.Option(
        parser=_moment, metavar="MOMENT", help="Records from this moment on; without an offset, in UTC."
    ),
]
UntilOption = Annotated[
    datetime | None,
    typer.Option(
        parser=_moment, metavar="MOMENT", help="Records before this moment; without an offset, in UTC."
    ),
]
EventOption = Annotated[str | None, typer.Option(help="One kind of event only, such as window_freeze.")]
SubjectOption = Annotated[str | None, typer.Option(help="Records of one subject only.")]
OutcomeOption = Annotated[
    str | None, typer.Option(help="One outcome only: success, or a code such as CWM-2002.")
]

T = TypeVar("T")


@app.command()
def verify(
    tenant: TenantOption = None,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            help="TENANT:NUMBER:DIGEST, as a gateway logs it (audit_checkpoint) and this command prints it: "
            "a chain that ends earlier, or has another digest there, was cut off. May be repeated.",
        ),
    ] = None,
    old_secret_file: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True, dir_okay=False, help="File with a secret that was used earlier. May be repeated."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check that no record of the audit log was changed, removed, moved or inserted. Exit code 1 when one was.

    Needs the gateways' secret (CWM_SECRET or CWM_SECRET_FILE, and CWM_PREVIOUS_SECRET). Records cut off at the end
    can only be detected with a checkpoint: the database has one that is about a minute old, and this command prints
    another one. Keep that where the database's administrator cannot change it.
    """
    checkpoints = [_checkpoint(text) for text in checkpoint or ()]
    older = [path.read_bytes().strip() for path in old_secret_file or ()]

    async def work(trail: AuditTrail, keys: ChainKeys) -> list[Verdict]:
        from cwm.services.audit.verify import VerifyAudit

        look = VerifyAudit(trail, keys)
        known_tenants = {*await trail.tenants(), *(point.tenant for point in checkpoints)}
        if tenant is not None and tenant not in known_tenants:
            fail("CWM-1003", f"There are no records of tenant {tenant}.")
        tenants = sorted(known_tenants) if tenant is None else [tenant]
        return [await look(each, checkpoints) for each in tenants]

    verdicts = _on_trail(work, older)
    whole = all(verdict.whole for verdict in verdicts)
    if as_json:
        print_json({"whole": whole, "tenants": [verdict_of(verdict) for verdict in verdicts]})
    else:
        _tell(verdicts)
    if not whole:
        raise typer.Exit(FOUND_FAULTS)


@app.command()
def sign(tenant: TenantOption = None, as_json: JsonOption = False) -> None:
    """Sign the records that are older than the chain: once, after the migration from a version without one.

    `cwm migrate` does so itself when it makes the chain. Afterwards run this only if you know why the records are not
    signed: whoever can write the database can put such records in place of a chain. Exit code 1 when a chain is damaged.
    """

    async def work(_: Interrupts) -> list[tuple[Signing, Verdict]]:
        from cwm.wiring.audit import opened_signing

        async with opened_signing(settings) as (sign_carried, trail):
            tenants = await trail.tenants() if tenant is None else [tenant]
            return [await sign_carried(each) for each in tenants]

    settings = load_settings(upstreams=False)
    results = [(signing.value, verdict) for signing, verdict in run_to_end(work)]
    if as_json:
        print_json({"tenants": [{"result": result, **verdict_of(verdict)} for result, verdict in results]})
    else:
        for result, verdict in results:
            print(signed_of(result, verdict))
    if any(result == "refused" for result, _ in results):
        raise typer.Exit(FOUND_FAULTS)


@app.command(name="list")
def list_(
    tenant: TenantOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    event: EventOption = None,
    subject: SubjectOption = None,
    outcome: OutcomeOption = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Most records per tenant.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List the newest records, the latest first."""
    from cwm.ports.audit import AuditFilter

    criteria = AuditFilter(since, until, event, subject, outcome)

    async def work(trail: AuditTrail, _: ChainKeys) -> list[dict[str, Any]]:
        tenants = await trail.tenants() if tenant is None else [tenant]
        records = [record for each in tenants for record in await trail.newest(each, limit, criteria)]
        return [document_of(record) for record in records]

    documents = _on_trail(work)
    end_with_json({"records": documents}, as_json=as_json)
    print_table(
        ("WHEN", "TENANT", "NO.", "WHO", "EVENT", "OUTCOME", "ABOUT", "FROM"),
        [
            (
                row["timestamp"],
                row["tenant"],
                str(row["seq"]),
                row["subject"],
                row["event"],
                row["outcome"],
                row["window_name"] or row["session_id"] or "",
                " ".join(filter(None, (row["face"], row["address"]))),
            )
            for row in documents
        ],
        none="No such records.",
    )


@app.command()
def export(
    tenant: TenantOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    event: EventOption = None,
    subject: SubjectOption = None,
    outcome: OutcomeOption = None,
) -> None:
    """Write records to standard output as JSON lines: tenant by tenant, each in the order of its chain.

    Each line has the record and its place in the chain. Records are read while they are written, so their number
    does not matter.
    """
    from cwm.ports.audit import AuditFilter

    criteria = AuditFilter(since, until, event, subject, outcome)

    async def work(trail: AuditTrail, _: ChainKeys) -> None:
        for each in await trail.tenants() if tenant is None else [tenant]:
            after = 0
            while page := await trail.page(each, after, _PAGE, criteria):
                for record in page:
                    print_json_line(document_of(record))
                after = page[-1].seq
        sys.stdout.flush()

    _on_trail(work)


def _on_trail(
    use: Callable[[AuditTrail, ChainKeys], Awaitable[T]], older: Sequence[bytes] | None = None
) -> T:
    """Run ``use`` on the trail. Without ``older`` (None), the keys cannot verify: the trail can only be read."""
    settings = load_settings(upstreams=False)

    async def work(_: Interrupts) -> T:
        async with _opened(settings, older) as (trail, keys):
            return await use(trail, keys)

    return run_to_end(work)


@asynccontextmanager
async def _opened(
    settings: Settings, older: Sequence[bytes] | None
) -> AsyncIterator[tuple[AuditTrail, ChainKeys]]:
    from cwm.adapters.local.secret import audit_keys
    from cwm.adapters.sql import schema
    from cwm.adapters.sql.audit.trail import SqlAuditTrail
    from cwm.adapters.sql.database import open_database
    from cwm.domain.audit_chain import ChainKeys

    database = open_database(settings.database.url())
    try:
        await schema.require_current(database)
        keys = ChainKeys((b"",)) if older is None else audit_keys(settings.isolation, *older, make=False)
        yield SqlAuditTrail(database, keys), keys
    finally:
        await database.dispose()


def _checkpoint(text: str) -> Checkpoint:
    from cwm.domain.audit_chain import Checkpoint, Place

    match = _CHECKPOINT.fullmatch(text)
    if match is None:
        fail("CWM-1003", "A checkpoint is TENANT:NUMBER:DIGEST.", USAGE)
    tenant, number, digest = match.groups()
    return Checkpoint(tenant, Place(int(number), digest.lower()), datetime.now(UTC))


def _tell(verdicts: Sequence[Verdict]) -> None:
    if not verdicts:
        print("There are no audit records.")
    for verdict in verdicts:
        remark = f", {verdict.carried} older than the chain" if verdict.carried else ""
        pruned = f", the first {verdict.pruned} were pruned" if verdict.pruned else ""
        state = "whole" if verdict.whole else "DAMAGED"
        print(f"{verdict.tenant}: {state}, {verdict.records} records{remark}{pruned}.")
        for finding in verdict.findings:
            print(f"  {finding_of(finding)}")
        if verdict.more_findings:
            print(f"  and {verdict.more_findings} further findings.")
        if verdict.end.seq:
            print(f"  checkpoint {verdict.tenant}:{verdict.end.seq}:{verdict.end.digest}")
