"""``cwm context``: shared context to a file and back."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from cwm.cli.console import USAGE, Interrupts, fail, load_settings, run_to_end

if TYPE_CHECKING:
    from cwm.services.context.archive import Archived, ContextArchive

app = typer.Typer(
    no_args_is_help=True,
    help="Save shared context of workspaces and the tenant to a file, and set it from one. Needs no running gateway.",
)

FileArgument = Annotated[Path, typer.Argument(help="The file.", dir_okay=False)]


@app.command()
def export(file: FileArgument) -> None:
    """Save what workspaces and the tenant of CWM_TENANT have now: keys with their values, without the past.

    Each scope is as it was at one moment, also while gateways serve. The file appears when it is whole.
    """
    try:
        _require_regular(file)
        # Where a link leads: the link stays one.
        target = Path(os.path.realpath(file))
        descriptor, name = tempfile.mkstemp(prefix=".cwm-", suffix=".part", dir=target.parent)
        part = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as opened:
                archived = _run(lambda archive, tenant: archive.write(tenant, opened))
                opened.flush()
                os.fsync(opened.fileno())
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        fail("CWM-4001", f"{file} cannot be written: {error.strerror}.")
    print(f"Saved {_counted(archived)} in {typer.format_filename(file)}.")
    if archived.lost:
        print(f"{archived.lost} keys had lost their values and were left out.")


@app.command(name="import")
def import_(file: FileArgument) -> None:
    """Set every key of a file that `cwm context export` wrote, each scope at once; other keys stay.

    The contents are checked before they are kept. Keys that have expired since are left out.
    """

    def read(opened: BinaryIO) -> Archived:
        return _run(lambda archive, tenant: archive.read(tenant, opened))

    try:
        with file.open("rb") as opened:
            archived = read(opened)
    except OSError as error:
        fail("CWM-4002", f"{file} cannot be read: {error.strerror}.")
    print(f"Set {_counted(archived)} from {typer.format_filename(file)}.")


def _require_regular(file: Path) -> None:
    """What replacing would destroy, such as a device, is refused. Raises OSError."""
    if file == Path("-"):
        fail("CWM-1003", "Give the name of a file: it appears when the archive is whole.", USAGE)
    try:
        there = file.stat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(there.st_mode):
        fail("CWM-1003", f"{file} is there and no regular file.", USAGE)


def _run(use: Callable[[ContextArchive, str], Awaitable[Archived]]) -> Archived:
    settings = load_settings(upstreams=False)

    async def work(_: Interrupts) -> Archived:
        from cwm.adapters.local.clock import SystemClock
        from cwm.app import opened
        from cwm.services.context.archive import ContextArchive

        async with opened(settings) as parts:
            archive = ContextArchive(
                parts.shared.context,
                parts.shared.contents,
                SystemClock(),
                settings.context.context_versions,
                settings.context.quota_bytes(),
            )
            return await use(archive, settings.isolation.tenant)

    return run_to_end(work)


def _counted(archived: Archived) -> str:
    return f"{archived.keys} keys of {archived.scopes} scopes ({archived.bytes} bytes in {archived.contents} values)"
