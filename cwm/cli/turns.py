"""``cwm turns …``: reads the turns of a running gateway's sessions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from cwm.cli.console import end_with_json, print_table
from cwm.cli.gateway.client import JsonOption, UrlOption, call
from cwm.cli.wording import moment

app = typer.Typer(no_args_is_help=True, help="List the turns of a session or window, and read what was said.")

Session = Annotated[str | None, typer.Argument(help="Id of the session.", metavar="[SESSION]")]
WindowOption = Annotated[str | None, typer.Option("--window", help="A window instead of a session.")]


@app.command()
def log(
    session: Session = None,
    window: WindowOption = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Turns to show.")] = 50,
    before: Annotated[int | None, typer.Option(min=1, help="Only turns before this number.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """List the turns of a session, or of the session that a window was frozen from, newest first."""
    answer = call(
        url, "turn_log", {"session_id": session, "window_name": window, "limit": limit, "before": before}
    )
    end_with_json(answer, as_json=as_json)
    print_table(
        ("", "NO", "TURN", "FROM", "TOKENS", "CACHED", "LINE", "ASKED", "CLIENT"),
        [_row(turn, answer.get("current_turn")) for turn in answer["turns"]],
        none="There are no turns.",
    )
    if "next_before" in answer:
        print(f"Continue with --before {answer['next_before']}.")


@app.command()
def show(
    session: Session = None,
    window: WindowOption = None,
    turn: Annotated[str | None, typer.Option("--turn", help="A turn instead of a session.")] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Add the token ids, in JSON.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Print what was said up to a turn; for a session, up to its current one."""
    fields = {"session_id": session, "window_name": window, "turn": turn, "include_tokens": tokens}
    answer = call(url, "turn_show", fields)
    end_with_json(answer, as_json=as_json or tokens)
    for message in answer["messages"]:
        print(f"[{message.get('role', '')}]\n{_text(message)}\n")
    if "warning" in answer:
        print(answer["warning"])


def _row(turn: Mapping[str, Any], current: str | None) -> tuple[str, ...]:
    origin = f"{turn['relation']} {turn['parent']} at {turn['parent_at']:,}" if "parent" in turn else ""
    return (
        "*" if turn["id"] == current else "",
        str(turn["number"]),
        turn["id"],
        origin,
        f"{turn['token_count']:,}" if turn["state"] == "ended" else turn["state"],
        f"{turn['cached_tokens']:,}" if "cached_tokens" in turn else "",
        turn.get("line", ""),
        moment(turn["asked_at"]),
        turn.get("client", ""),
    )


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(
            str(part.get("text", json.dumps(part, ensure_ascii=False)))
            for part in content
            if isinstance(part, dict)
        )
    calls = [
        f"{call['function'].get('name')}({call['function'].get('arguments')})"
        for call in message.get("tool_calls") or []
        if isinstance(call, dict) and isinstance(call.get("function"), dict)
    ]
    return "\n".join(filter(None, (content, *calls)))
