"""``cwm connect``: how to connect a client to a running gateway, and whether it works."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from cwm.cli.connect import faces, files
from cwm.cli.gateway.client import UrlOption, base_url, own_credential
from cwm.cli.terminal.console import (
    FOUND_FAULTS,
    USAGE,
    Interrupts,
    JsonOption,
    fail,
    print_json,
    print_table,
    run_to_end,
)
from cwm.domain.clients.client import Access, Client
from cwm.domain.clients.known import CLIENTS


def connect(
    client: Annotated[
        str | None,
        typer.Argument(help="Name of the client; without it the clients are listed.", metavar="CLIENT"),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model to use; default: the first that is served.")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write the client's files, after showing what changes in them.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before writing.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Print what connects a client to a running gateway, its language model and its tools, and check both with one request.

    Where the gateway asks for a key, CWM_API_KEY has it, for this command and for the client. --write is for claude-code (in
    this folder), opencode (in this folder), codex (in CODEX_HOME or ~/.codex) and pi (in ~/.pi/agent).
    """
    if client is None:
        _print_clients(as_json=as_json)
        return
    agent_client = next((each for each in CLIENTS if each.name == client), None)
    if agent_client is None:
        names = ", ".join(each.name for each in CLIENTS)
        fail("CWM-1003", f"'{client}' is no client that CWM knows: {names}.", USAGE)
    if write and not agent_client.files:
        names = ", ".join(sorted(each.name for each in CLIENTS if each.files))
        fail("CWM-1003", f"--write is for {names}; add the lines by hand.", USAGE)
    address, credential = base_url(url), own_credential()
    name, context_tokens = _served(address, credential, model)
    access = Access(address, name, credential is not None, context_tokens)
    if not as_json:
        _print_parts(agent_client, access)
    if write:
        _write(agent_client, access, yes=yes)
    results = run_to_end(lambda interrupts: _check(agent_client, access, credential, interrupts))
    if as_json:
        print_json(
            {
                "client": client,
                "model": access.model,
                "parts": _parts(agent_client, access),
                "checks": results,
            }
        )
    else:
        print()
        print_table(
            ("FACE", "WORKS", ""), [(each["face"], _yes(each["works"]), each["detail"]) for each in results]
        )
    if not all(each["works"] for each in results):
        raise typer.Exit(FOUND_FAULTS)


def _print_clients(*, as_json: bool) -> None:
    rows = [(each.name, each.title, _llm(each), "yes" if each.mcp else "no") for each in CLIENTS]
    if as_json:
        print_json([{"name": name, "title": title, "llm": llm, "mcp": mcp} for name, title, llm, mcp in rows])
    else:
        print_table(("CLIENT", "", "LANGUAGE MODEL", "TOOLS (MCP)"), rows)
        print("Connect one with `cwm connect CLIENT`.")


def _llm(client: Client) -> str:
    return "no" if client.protocol is None else client.protocol.value


def _served(url: str, credential: str | None, wanted: str | None) -> tuple[str, int | None]:
    """The model, else the first that is served, and the length of its context if the gateway gives it."""
    try:
        lengths: dict[str, int | None] = run_to_end(lambda _: faces.models(url, credential))
    except ConnectionError as failed:
        if wanted is None:
            fail("CWM-5001", str(failed))
        return wanted, None
    name = wanted or next(iter(lengths), None)
    if name is None:
        fail("CWM-5001", "The gateway serves no model now; name one with --model.")
    return name, lengths.get(name)


def _parts(client: Client, access: Access) -> list[dict[str, str]]:
    return [
        {"face": face, "where": part.note, "text": part.text}
        for face, parts in (("language model", client.llm), ("tools (MCP)", client.mcp))
        if parts is not None
        for part in parts(access)
    ]


def _print_parts(client: Client, access: Access) -> None:
    for part in _parts(client, access):
        print(f"# {client.title}, {part['face']}: {part['where']}\n{part['text']}\n")


def _write(client: Client, access: Access, *, yes: bool) -> None:
    try:
        changes = files.changes(client, access, Path.cwd())
        for change in changes:
            print(change.difference())
        if not changes:
            print("The files of the client have all of it already.")
        elif yes or typer.confirm("Write this?"):
            for change in changes:
                change.write()
    except files.NotMergeableError as refused:
        fail("CWM-1003", str(refused))
    except OSError as failed:
        fail("CWM-4001", f"{failed.filename}: {failed.strerror}.")


async def _check(
    client: Client, access: Access, credential: str | None, _: Interrupts
) -> list[dict[str, Any]]:
    results = []
    if (protocol := client.protocol) is not None:
        results.append(
            await _tried(
                "language model",
                f"{access.model} answered",
                lambda: faces.ask_model(access.url, protocol, access.model, credential),
            )
        )
    if client.mcp is not None:
        works = "a tool was called"
        results.append(await _tried("tools (MCP)", works, lambda: faces.ask_tools(access.url, credential)))
    return results


async def _tried(face: str, success: str, ask: Callable[[], Awaitable[None]]) -> dict[str, Any]:
    start = time.monotonic()
    try:
        await ask()
    except ConnectionError as failed:
        return {"face": face, "works": False, "detail": str(failed)}
    return {"face": face, "works": True, "detail": f"{success} in {time.monotonic() - start:.1f} s"}


def _yes(works: bool) -> str:
    return "yes" if works else "NO"
