"""``cwm stdio``: runs the gateway for a client that starts it as a process."""

from __future__ import annotations

import asyncio
import contextlib
import sys

from cwm.cli.serve import log_as
from cwm.cli.terminal.console import USAGE, Interrupts, fail, load_settings, run_to_end


def stdio() -> None:
    """Serve the MCP tools on standard input and output, for clients that start a process (Claude Desktop, Cursor).

    The engine runs elsewhere (CWM_VLLM_URL, CWM_LMCACHE_URL, CWM_COORDINATOR_URL). The log goes to standard error.
    The gateway stops when the client closes standard input, or on Ctrl-C or SIGTERM.
    """
    _require_streams()
    settings = load_settings()

    async def work(_: Interrupts) -> None:
        # Imports below configure logging; log_as then replaces their configuration.
        from cwm.app import run_stdio

        log_as(settings)
        with contextlib.suppress(asyncio.CancelledError):
            await run_stdio(settings)

    run_to_end(work, fast=True)


def _require_streams() -> None:
    if sys.stdin is None or sys.stdout is None:
        fail("CWM-1003", "cwm stdio needs a client at its standard input and output.", USAGE)
    if sys.stdin.isatty():
        print("cwm stdio waits for an MCP client on standard input; Ctrl-C ends it.", file=sys.stderr)
