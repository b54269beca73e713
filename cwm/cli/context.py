"""``cwm context``: saves shared context to a file and restores it."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from cwm.cli.terminal.console import USAGE, Interrupts, fail, load_settings, run_to_end

if TYPE_CHECKING:
    from cwm.services.context.archive import Archived, ContextArchive

app = typer.Typer(
    no_args_is_help=True,
    help="Save the shared context of workspaces and the tenant to a file, and restore it. Needs no running gateway.",
)

FileArgument = Annotated[Path, typer.Argument(help="The file.", dir_okay=False)]


@app.command()
def export(file: FileArgument) -> None:
    """Save the current keys and values of all workspaces and the tenant of CWM_TENANT, without past versions.

    Each scope is saved as of one moment, also while gateways run. The file appears once it is complete.
    """
    try:
        _require_regular(file)
        target = _target(file)
        descriptor, name = tempfile.mkstemp(prefix=".cwm-", suffix=".part", dir=target.parent)
        part = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                archived = _run(lambda archive, tenant: archive.write(tenant, stream))
                stream.flush()
                os.fsync(stream.fileno())
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        fail("CWM-4001", f"{file} cannot be written: {error.strerror}.")
    print(f"Saved {_summary(archived)} in {typer.format_filename(file)}.")
    if archived.lost:
        print(f"{archived.lost} keys were left out because their values are lost.")


@app.command(name="import")
def import_(file: FileArgument) -> None:
    """Set every key from a file that `cwm context export` wrote, each scope in one step; other keys stay.

    Contents are verified before they are stored. Keys that have expired since the export are left out.
    """

    def read(stream: BinaryIO) -> Archived:
        return _run(lambda archive, tenant: archive.read(tenant, stream))

    try:
        with file.open("rb") as archive_file:
            archived = read(archive_file)
    except OSError as error:
        fail("CWM-4002", f"{file} cannot be read: {error.strerror}.")
    print(f"Set {_summary(archived)} from {typer.format_filename(file)}.")


def _target(file: Path) -> Path:
    """The target of a link, so that the link itself stays. One that leads out of its folder may be somebody else's, and is refused."""
    target, folder = Path(os.path.realpath(file)), Path(os.path.realpath(file.parent))
    if not target.is_relative_to(folder):
        name = typer.format_filename(file)
        fail(
            "CWM-1003", f"{name} is a link to {target}, outside of its folder: name that file itself.", USAGE
        )
    return target


def _require_regular(file: Path) -> None:
    """Refuse targets that replacing would destroy, such as a device. Raises OSError."""
    if file == Path("-"):
        fail("CWM-1003", "Give a file name; the file appears once the archive is complete.", USAGE)
    try:
        there = file.stat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(there.st_mode):
        fail("CWM-1003", f"{file} exists and is not a regular file.", USAGE)


def _run(use: Callable[[ContextArchive, str], Awaitable[Archived]]) -> Archived:
    settings = load_settings(upstreams=False)

    async def work(_: Interrupts) -> Archived:
        from cwm.adapters.local.clock import SystemClock
        from cwm.app import opened
        from cwm.services.context.archive import ContextArchive

        async with opened(settings) as parts:
            archive = ContextArchive(
                parts.base.shared.context,
                parts.base.shared.contents,
                SystemClock(),
                settings.context.context_versions,
                settings.context.quota_bytes(),
            )
            return await use(archive, settings.isolation.tenant)

    return run_to_end(work)


def _summary(archived: Archived) -> str:
    return f"{archived.keys} keys of {archived.scopes} scopes ({archived.bytes} bytes in {archived.contents} values)"
