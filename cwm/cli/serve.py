"""``cwm serve``: runs the gateway alone."""

from __future__ import annotations

import asyncio
import errno
import gc
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from cwm.cli.terminal.console import Interrupts, fail, lines_into_log, load_settings, run_to_end, tell

if TYPE_CHECKING:
    from cwm.settings import Settings

HostOption = Annotated[
    str | None,
    typer.Option(
        help="Address to listen on, instead of CWM_HOST; one other than loopback needs authentication (CWM_API_KEYS, "
        "CWM_OAUTH_ISSUER) or CWM_ALLOW_UNAUTHENTICATED=true."
    ),
]
PortOption = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port, instead of CWM_PORT; 0 picks a free one.")
]


def serve(host: HostOption = None, port: PortOption = None) -> None:
    """Run the gateway for an engine that runs elsewhere (CWM_VLLM_URL, CWM_LMCACHE_URL, CWM_COORDINATOR_URL).

    Creates the SQLite database on first start; refuses a database whose schema is of another version. Ctrl-C or
    SIGTERM lets running streams finish first.
    """
    settings = load_settings(host=host, port=port)

    async def work(interrupts: Interrupts) -> None:
        # Almost nothing allocated during the start is garbage. settle_memory turns the collector on again.
        gc.disable()
        log_as(settings)
        migrating = await check(settings)
        from cwm.app import run

        await migrated(migrating)
        await run(settings, ready=ready(interrupts, settings))
        tell("Stopped.")

    run_to_end(work, fast=True)


def ready(interrupts: Interrupts, settings: Settings) -> Callable[[str], None]:
    """The callback for ``cwm.app.run``: print the URL and leave signals to the server, which drains first."""

    def announced(url: str) -> None:
        interrupts.disarm()
        announce(url, settings)

    return announced


def log_as(settings: Settings) -> None:
    """Send the gateway's own log to stderr."""
    from cwm.adapters.telemetry.logging import configure_logging
    from cwm.adapters.telemetry.redaction import HIDDEN

    HIDDEN.hide(settings.secrets())
    if settings.logging.log_format == "json":
        lines_into_log(settings.logging.log_level)
    else:
        configure_logging(settings.logging.log_level, settings.logging.log_format)


def announce(url: str, settings: Settings) -> None:
    """Print the gateway's address, who may use it, and where the console is."""
    from cwm.settings.urls import on_loopback

    tell(f"CWM is ready: {url}/mcp for agents, {url}/v1 for OpenAI clients.")
    tell(_who_may(settings, loopback=on_loopback(settings.http.host)))
    if settings.serves_console():
        tell(f"The console, for people: {url}/console")


def _who_may(settings: Settings, *, loopback: bool) -> str:
    auth = settings.auth
    if not auth.required:
        where = "loopback only" if loopback else "and not on loopback only"
        return f"No auth, {where}: everybody who can reach this address may do everything."
    kinds = [f"access tokens of {auth.oauth_issuer}"] if auth.oauth_issuer else []
    kinds += ["API keys (`cwm keys`)"] if auth.api_keys else []
    return f"Auth: {' and '.join(kinds)}."


async def check(settings: Settings) -> subprocess.Popen[bytes] | None:
    """Fail before anything is started: with SchemaError, SettingsError, or because the port is in use.

    Returns the process that migrates a new SQLite database: run in this process, the migration code would stay in
    memory.
    """
    from cwm.adapters.local.secret import load_secret
    from cwm.adapters.sql import schema
    from cwm.adapters.sql.database import open_database
    from cwm.wiring.access import refuse_open_socket

    refuse_open_socket(settings)
    _require_free_port(settings.http.host, settings.http.port)
    load_secret(settings.isolation)
    database = open_database(settings.database.url())
    try:
        if settings.database.database_url is None and await schema.is_empty(database):
            return _migrating()
        await schema.require_current(database)
        return None
    finally:
        await database.dispose()


async def migrated(migrating: subprocess.Popen[bytes] | None) -> None:
    """Wait for the migration. Its result is ignored: the gateway checks the schema and migrates it itself if needed."""
    if migrating is not None:
        await asyncio.to_thread(migrating.wait)


def _migrating() -> subprocess.Popen[bytes]:
    nothing = subprocess.DEVNULL
    command = (sys.executable, "-m", "cwm", "migrate")
    return subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing)  # noqa: S603 - ours


def _require_free_port(host: str, port: int) -> None:
    import socket

    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        why = (
            f"port {port} on {host} is in use; choose another with --port or CWM_PORT"
            if error.errno == errno.EADDRINUSE
            else f"cannot listen on {host} port {port}: {error.strerror}"
        )
        fail("CWM-1003", f"The gateway did not start: {why}.")
    except UnicodeError:
        fail("CWM-1003", f"The gateway did not start: {host[:64]} is not a host name.")
