"""``cwm reconcile``: makes a running gateway reconcile everything now."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated, Any

import typer

from cwm.cli.gateway.client import (
    GatewayAwayError,
    JsonOption,
    ToolRefusedError,
    UrlOption,
    answered,
    base_url,
    http_client,
    no_answer,
    other_answer,
    own_credential,
)
from cwm.cli.terminal.console import FOUND_FAULTS, print_json, print_table


def reconcile(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; print the steps that would be taken.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Finish interrupted operations, correct pins, read back every guaranteed window, and remove what has expired.

    A gateway does this by itself at its start and every CWM_RECONCILE_SECONDS, reading back a few windows each
    time. Exit code 1 when a step failed or was postponed.
    """
    where = base_url(url)
    if not as_json:
        print(f"The gateway at {where} reconciles everything and reads back all guaranteed windows ...")
        sys.stdout.flush()

    steps = answered(partial(_ask, where, dry_run=dry_run))["steps"]
    if as_json:
        print_json({"steps": steps})
    else:
        print_table(
            ("ACTION", "TENANT", "WHAT", "OUTCOME", "DETAIL"),
            [
                (step["action"], step["tenant"], step["subject"], step["outcome"], step["detail"])
                for step in steps
            ],
            none="Nothing to do: registry, pins and blocks agree.",
        )
    if any(step["outcome"] in {"failed", "postponed"} for step in steps):
        raise typer.Exit(FOUND_FAULTS)


async def _ask(where: str, *, dry_run: bool) -> Any:
    import httpx2

    from cwm.cli.gateway.transport import LastAnswer

    last = LastAnswer()
    try:
        credential = own_credential()
        headers = {} if credential is None else {"authorization": f"Bearer {credential}"}
        async with http_client(headers, httpx2.Timeout(None), last=last) as http:
            answer = await http.post(f"{where}/reconcile", json={"dry_run": dry_run})
    except (httpx2.TransportError, OSError):
        raise GatewayAwayError(no_answer(where, last), last) from None
    try:
        body = answer.json()
    except ValueError:
        body = None
    if not (answer.is_success and isinstance(body, dict) and "steps" in body):
        if isinstance(body, dict) and {"code", "message"} <= body.keys():
            raise ToolRefusedError(body)
        raise GatewayAwayError(other_answer(where, answer.status_code), last)
    return body
