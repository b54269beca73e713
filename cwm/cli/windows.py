"""``cwm windows …``: works with the windows of a running gateway."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, Literal

import typer

from cwm.cli.gateway.client import JsonOption, UrlOption, call
from cwm.cli.terminal.console import confirm_deletion, end_with_json, print_facts, print_table
from cwm.cli.terminal.verdicts import basis
from cwm.cli.terminal.wording import comma_list, count, moment
from cwm.domain.notation import size

app = typer.Typer(
    no_args_is_help=True,
    help="List, show, freeze, thaw, clone, rename and delete windows of a running gateway.",
)

Name = Annotated[str, typer.Argument(help="Name of the window.", metavar="WINDOW")]
Ttl = Annotated[int | None, typer.Option("--ttl", min=1, help="Delete it after this many seconds.")]
VisibilityOption = Annotated[
    str | None,
    typer.Option(
        help="Who may see it: private, workspace:NAME or tenant; default: the gateway's.",
        metavar="VISIBILITY",
    ),
]
OnlyVisibility = Annotated[
    str | None, typer.Option("--visibility", help="Only of this visibility.", metavar="VISIBILITY")
]
Visibility = Annotated[str, typer.Argument(help="private, workspace:NAME or tenant.", metavar="VISIBILITY")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Repeat for several.", metavar="TAG")]


@app.command("list")
def list_windows(
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", help="Only windows with this tag; repeat for several.", metavar="TAG"),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Only windows of this model.")] = None,
    search: Annotated[
        str | None, typer.Option(help="Only windows with this text in name or description.")
    ] = None,
    sort_by: Annotated[
        Literal["name", "created_at", "token_count", "size"], typer.Option("--sort", help="Sort field.")
    ] = "created_at",
    ascending: Annotated[bool, typer.Option("--asc", help="Smallest or oldest first.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Most windows to show.")] = 20,
    offset: Annotated[int, typer.Option(min=0, help="Windows to skip.")] = 0,
    visibility: OnlyVisibility = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """List the windows, newest first."""
    answer = call(
        url,
        "window_list",
        {
            "tags": tag or None,
            "model": model,
            "search": search,
            "sort_by": sort_by,
            "sort_order": "asc" if ascending else "desc",
            "limit": limit,
            "offset": offset,
            "visibility": visibility,
        },
    )
    end_with_json(answer, as_json=as_json)
    none = "No window is like that." if tag or model or search or visibility else "There are no windows."
    print_table(
        ("NAME", "TOKENS", "SIZE", "MODEL", "TAGS", "CREATED", "VISIBILITY", "OWNER", "FROM"),
        [_row(window) for window in answer["windows"]],
        none=none if not answer["total"] else "",
    )
    if answer["has_more"]:
        print(f"{answer['total']:,} in total; continue with --offset {offset + limit}.")


@app.command()
def show(
    name: Name,
    blocks: Annotated[bool, typer.Option("--blocks", help="Add each block: hash, bytes, tier.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Show a window and where its blocks are now."""
    answer = call(url, "window_status", {"window_name": name, "include_blocks": blocks})
    print_status(answer, as_json=as_json)


@app.command()
def freeze(
    session: Annotated[str, typer.Argument(help="Id of the session to freeze.", metavar="SESSION")],
    name: Annotated[str, typer.Argument(help="Name of the new window.", metavar="WINDOW")],
    description: Annotated[str | None, typer.Option(help="What the context holds.")] = None,
    tag: Tags = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Return before the blocks are proven to be stored.")
    ] = False,
    canary: Annotated[
        bool,
        typer.Option(help="Record a canary, a look at the KV that thaws compare the restored KV with."),
    ] = True,
    retention: Annotated[
        Literal["guaranteed", "best_effort"] | None,
        typer.Option(help="Whether its blocks are kept in any case, or only its tokens."),
    ] = None,
    ttl: Ttl = None,
    turn: Annotated[
        str | None,
        typer.Option(
            help="A turn of `cwm turns log`, or tag:NAME, instead of the current one; the session goes on."
        ),
    ] = None,
    keep_session: Annotated[
        bool, typer.Option("--keep-session", help="Let the session go on; default: it takes no more turns.")
    ] = False,
    visibility: VisibilityOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Freeze a session's context under a name."""
    answer = call(
        url,
        "window_freeze",
        {
            "session_id": session,
            "window_name": name,
            "description": description,
            "tags": tag or None,
            "wait": False if no_wait else None,
            "canary": canary,
            "retention": retention,
            "ttl_seconds": ttl,
            "turn": turn,
            "keep_session": keep_session or None,
            "visibility": visibility,
        },
    )
    end_with_json(answer, as_json=as_json)
    print(
        f"Froze {count(answer['token_count'], 'token')} of session {session} as window {name}: "
        f"{count(answer['block_count'], 'block')}, {size(answer['total_size_bytes'])}, {answer.get('storage_tier', 'no tier')}."
    )
    _warn(answer)


@app.command()
def thaw(
    name: Name,
    session: Annotated[
        str | None, typer.Option(help="Id of the new session; default: a generated one.")
    ] = None,
    as_session: Annotated[
        str | None,
        typer.Option(
            "--as", help="A session that goes on from the window under its own id.", metavar="SESSION"
        ),
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Continue with this message immediately.")] = None,
    accept_template: Annotated[
        bool,
        typer.Option("--accept-template", help="Continue although the model's chat template has changed."),
    ] = False,
    verify: Annotated[bool, typer.Option(help="Compare the restored KV with the window's canary.")] = True,
    visibility: VisibilityOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Thaw a window into a new session, or into one that goes on from it under its own id (--as)."""
    answer = call(
        url,
        "window_thaw",
        {
            "window_name": name,
            "new_session_id": session,
            "as_session": as_session,
            "continuation_prompt": prompt,
            "accept_template": accept_template,
            "verify": verify,
            "visibility": visibility,
        },
    )
    end_with_json(answer, as_json=as_json)
    print(
        f"Thawed {count(answer['token_count'], 'token')} of window {name} into session "
        f"{answer['session_id']} in {answer['restoration_time_ms']} ms; "
        f"verification: {answer['verification']}{basis(answer['receipt']['verification'])}."
    )
    _warn(answer)
    continuation = answer.get("continuation")
    if continuation:
        print(continuation["text"] if isinstance(continuation, dict) else continuation)
    if "next_step" in answer:
        print(answer["next_step"])


@app.command()
def clone(
    source: Annotated[str, typer.Argument(help="Window to branch from.", metavar="SOURCE")],
    target: Annotated[str, typer.Argument(help="Name of the new window.", metavar="TARGET")],
    description: Annotated[str | None, typer.Option(help="What the branch is for.")] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", help="Instead of the source's tags; repeat for several.", metavar="TAG"),
    ] = None,
    retention: Annotated[
        Literal["guaranteed", "best_effort"] | None, typer.Option(help="Instead of the source's.")
    ] = None,
    ttl: Ttl = None,
    visibility: VisibilityOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Branch a window: a second window that shares its blocks."""
    answer = call(
        url,
        "window_clone",
        {
            "source_window": source,
            "target_window": target,
            "description": description,
            "tags": tag or None,
            "retention": retention,
            "ttl_seconds": ttl,
            "visibility": visibility,
        },
    )
    end_with_json(answer, as_json=as_json)
    print(f"Window {target} shares {count(answer['shared_blocks'], 'block')} with {source}.")


@app.command()
def share(name: Name, visibility: Visibility, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Say who may see a window of yours, thaw it, clone it and delete it."""
    answer = call(url, "window_share", {"window_name": name, "visibility": visibility})
    end_with_json(answer, as_json=as_json)
    print(f"Window {name}: {answer['visibility']}.")


@app.command()
def rename(
    old: Annotated[str, typer.Argument(help="Name of the window.", metavar="OLD")],
    new: Annotated[str, typer.Argument(help="Its new name.", metavar="NEW")],
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Give a window another name."""
    answer = call(url, "window_rename", {"window_name": old, "new_name": new})
    end_with_json(answer, as_json=as_json)
    print(f"Window {old} is {new} now.")


@app.command()
def delete(
    name: Name,
    force: Annotated[
        bool, typer.Option("--force", help="Delete it even if windows or live sessions depend on it.")
    ] = False,
    keep_blocks: Annotated[bool, typer.Option("--keep-blocks", help="Leave its KV in the tiers.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask for confirmation on a terminal.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Delete a window, and the blocks that nothing else uses."""
    confirm_deletion(f"window {name}", yes=yes)
    answer = call(
        url, "window_delete", {"window_name": name, "force": force, "delete_blocks": not keep_blocks}
    )
    end_with_json(answer, as_json=as_json)
    print(
        f"Deleted window {name}: {count(answer['blocks_deleted'], 'block')}, "
        f"{size(answer['space_freed_bytes'])} freed."
    )
    if "session_id" in answer:
        print(f"Its session {answer['session_id']} stays: {answer['session_state']}.")
    _warn(answer)


def print_status(answer: dict[str, Any], *, as_json: bool) -> None:
    """Print the result of ``window_status`` for a window or a session."""
    end_with_json(answer, as_json=as_json)
    cache, times = answer["kv_cache"], answer["timestamps"]
    facts = [
        (answer["type"], answer["id"]),
        ("state", answer["state"]),
        ("model", answer["model"]),
        ("tokens", f"{answer['token_count']:,}"),
        ("blocks", f"{cache['block_count']:,}, {size(cache['total_size_bytes'])}"),
        (
            "tiers",
            comma_list(f"{tier} {chunk_count:,}" for tier, chunk_count in cache.get("tiers", {}).items()),
        ),
        ("resident now", _share(cache.get("hit_rate"))),
        ("created", moment(times["created_at"])),
        ("updated", moment(times["updated_at"])),
        ("frozen", moment(times.get("frozen_at"))),
        ("metadata", json.dumps(answer["metadata"], ensure_ascii=False) if answer.get("metadata") else ""),
        *_more(answer),
    ]
    print_facts([(name, value) for name, value in facts if value])
    if answer.get("blocks"):
        print()
        print_table(
            ("BLOCK", "SIZE", "TIERS"),
            [
                (block["hash"], size(block["size_bytes"]), comma_list(block["tiers"]) or "nowhere")
                for block in answer["blocks"]
            ],
        )


def _more(answer: dict[str, Any]) -> list[tuple[str, str]]:
    """Plain fields beyond the contract's, under the names in the result."""
    contract_fields = {"type", "id", "state", "model", "token_count"}
    return [
        (name.replace("_", " "), comma_list(value) if isinstance(value, list) else str(value))
        for name, value in answer.items()
        if name not in contract_fields
        and not isinstance(value, dict)
        and name != "blocks"
        and value not in (None, [], "")
    ]


def _row(window: dict[str, Any]) -> tuple[str, ...]:
    return (
        window["name"],
        f"{window['token_count']:,}",
        size(window["size_bytes"]),
        window["model"],
        comma_list(window["tags"]),
        moment(window["created_at"]),
        window["visibility"],
        window["owner"],
        window.get("parent_window") or "",
    )


def _share(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.0%} of its blocks"


def _warn(answer: dict[str, Any]) -> None:
    if answer.get("warning"):
        print(f"Warning: {answer['warning']}", file=sys.stderr)
