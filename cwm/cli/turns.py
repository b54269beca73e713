"""``cwm turns …``: works with the turns of a running gateway's sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import typer

from cwm.cli.gateway.client import JsonOption, UrlOption, call
from cwm.cli.terminal.console import (
    USAGE,
    RawOption,
    confirm_deletion,
    end_with_json,
    fail,
    print_table,
    print_text,
)
from cwm.cli.terminal.wording import comma_list, count, moment
from cwm.cli.windows import VisibilityOption
from cwm.domain.transcripts import plain, text_of

app = typer.Typer(
    no_args_is_help=True, help="List, read, search, compare, name and branch the turns of sessions."
)

Session = Annotated[str | None, typer.Argument(help="Id of the session.", metavar="[SESSION]")]
TurnId = Annotated[
    str, typer.Argument(help="Id of the turn, from `cwm turns log`, or tag:NAME.", metavar="TURN")
]
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
    names: dict[str, list[str]] = {}
    for each in answer["tags"]:
        names.setdefault(each["turn"], []).append(each["tag"])
    routed = any("router_decision" in turn for turn in answer["turns"])
    print_table(
        (
            "",
            "NO",
            "TURN",
            "TAGS",
            "FROM",
            "TOKENS",
            "CACHED",
            "FIRST TOKEN",
            "LEFT AT",
            "LINE",
            "ASKED",
            "CLIENT",
            *(["ROUTED TO"] if routed else []),
        ),
        [
            (
                *_row(turn, answer.get("current_turn"), names.get(turn["id"], [])),
                *([turn.get("router_decision", "")] if routed else []),
            )
            for turn in answer["turns"]
        ],
        none="There are no turns.",
    )
    if "origin" in answer:
        print(f"It begins where another session was at {answer['origin']}.")
    for each in answer["turns"]:
        if words := each.get("words"):
            print(f"{each['number']} left at message {each['diverged_at']} ({_reason(each)}):")
            print(f"  - {words['old']}\n  + {words['new']}")
        if switch := each.get("habit_switch"):
            print(f"{each['number']}: {switch} switches that off in the client.")
    if "next_before" in answer:
        print(f"Continue with --before {answer['next_before']}.")


@app.command()
def show(
    session: Session = None,
    window: WindowOption = None,
    turn: Annotated[
        str | None, typer.Option("--turn", help="A turn, or tag:NAME, instead of a session.")
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Add the token ids, in JSON.")] = False,
    message_format: Annotated[
        Literal["text", "openai", "anthropic"],
        typer.Option("--format", help="text to read, or the messages of an API, in JSON."),
    ] = "text",
    raw: RawOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Print what was said up to a turn; for a session, up to its current one."""
    fields = {"session_id": session, "window_name": window, "turn": turn, "include_tokens": tokens}
    if message_format == "anthropic":
        fields["message_format"] = message_format
    answer = call(url, "turn_show", fields)
    if message_format != "text" and not as_json:
        end_with_json({name: answer[name] for name in ("system", "messages") if name in answer}, as_json=True)
    end_with_json(answer, as_json=as_json or tokens)
    print_text(plain(answer["messages"]), raw=raw, end="")
    if "warning" in answer:
        print(answer["warning"])


@app.command()
def search(
    words: Annotated[list[str], typer.Argument(help="Words that a message must all have.", metavar="WORDS")],
    session: Annotated[str | None, typer.Option("--session", help="Only this session.")] = None,
    window: WindowOption = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Messages to show.")] = 20,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Where an earlier search stopped.")] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Print the whole messages.")] = False,
    raw: RawOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Find messages by their words, in all sessions or in one, newest first."""
    if raw and not whole:
        fail("CWM-1003", "--raw needs --whole: an excerpt is in a table.", USAGE)
    where = {"session_id": session, "window_name": window, "limit": limit, "cursor": cursor}
    everything = {"include_messages": whole, "all_sessions": session is window is None}
    answer = call(url, "turn_search", {"query": " ".join(words), **where, **everything})
    end_with_json(answer, as_json=as_json)
    if whole:
        for each in answer["results"]:
            text = f"[{each['role']}] {each['session_id']} {each['turn']}\n{text_of(each['message'])}\n"
            print_text(text, raw=raw)
    if not (whole and answer["results"]):
        _print_findings(answer)
    if "next_cursor" in answer:
        print(f"There is more to search: continue with --cursor {answer['next_cursor']}.")


def _print_findings(answer: Mapping[str, Any]) -> None:
    print_table(
        ("SESSION", "TURN", "ASKED", "ROLE", "EXCERPT"),
        [
            (
                each["session_id"],
                each["turn"],
                moment(each["asked_at"]),
                each["role"],
                " ".join(each["excerpt"].split()),
            )
            for each in answer["results"]
        ],
        none=f"None of {count(answer['searched_messages'], 'message')} has these words.",
    )


@app.command()
def diff(
    left: Annotated[
        str, typer.Argument(help="session:ID, window:NAME, turn:ID or tag:NAME.", metavar="LEFT")
    ],
    right: Annotated[str, typer.Argument(help="What to compare it with.", metavar="RIGHT")],
    raw: RawOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Compare two contexts, and say what a switch from the first to the second would cost."""
    answer = call(url, "turn_diff", {"left": left, "right": right})
    end_with_json(answer, as_json=as_json)
    predicted = f", a thaw about {answer['thaw_ms']:,.0f} ms" if "thaw_ms" in answer else ""
    print(
        f"The first {count(answer['common_tokens'], 'token')} and {count(answer['common_messages'], 'message')} "
        f"are equal, of {answer['left_tokens']:,} and {answer['right_tokens']:,} tokens.\n"
        f"A switch computes {count(answer['computed_tokens'], 'token')}{predicted}."
    )
    for sign, side in (("-", "left"), ("+", "right")):
        if message := answer.get(f"{side}_message"):
            print_text(f"{sign} [{message.get('role', '')}] {text_of(message)}", raw=raw)


@app.command("left-out")
def left_out(
    session: Session = None,
    turn: Annotated[str | None, typer.Option("--turn", help="A turn instead of a session.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """List what the newest summary of a conversation left out: names, numbers, paths, quotations, instructions."""
    answer = call(url, "turn_left_out", {"session_id": session, "turn": turn})
    end_with_json(answer, as_json=as_json)
    print(
        f"{answer['left_out_count']:,} of {count(answer['fact_count'], 'fact')} are not in {answer['turn']}."
    )
    print_table(
        ("KIND", "MESSAGE", "TEXT"),
        [(fact["kind"], f"{fact['message']} {fact['role']}", fact["text"]) for fact in answer["facts"]],
        none="Nothing was left out.",
    )
    before = f"tag:{answer['tag']}" if "tag" in answer else answer["before"]
    print(f"Read it with `cwm turns show --turn {before}`, go back with `cwm turns revert {before}`.")


@app.command()
def branch(
    turn: TurnId,
    session: Annotated[
        str | None, typer.Option(help="Id of the new session; default: a generated one.")
    ] = None,
    visibility: VisibilityOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Open a new session at a turn, and print its id. What tools did is not undone."""
    arguments = {"turn": turn, "new_session_id": session, "visibility": visibility}
    answer = call(url, "turn_branch", arguments)
    end_with_json(answer, as_json=as_json)
    print(answer["session_id"])


@app.command()
def revert(turn: TurnId, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Make a turn the current one of its session. What tools did is not undone."""
    answer = call(url, "turn_revert", {"turn": turn})
    end_with_json(answer, as_json=as_json)
    print(f"Session {answer['session_id']} is at {turn}: {count(answer['token_count'], 'token')}.")


@app.command()
def delete(
    turn: TurnId,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask for confirmation on a terminal.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Delete a turn and every turn that came from it."""
    confirm_deletion(f"{turn} and what came from it", yes=yes)
    answer = call(url, "turn_delete", {"turn": turn})
    end_with_json(answer, as_json=as_json)
    print(f"Deleted {count(answer['deleted_turns'], 'turn')}.")


@app.command()
def tag(
    name: Annotated[
        str | None, typer.Argument(help="Name of the tag; without it the tags are listed.", metavar="[NAME]")
    ] = None,
    turn: Annotated[str | None, typer.Argument(help="The turn to name.", metavar="[TURN]")] = None,
    move: Annotated[bool, typer.Option("--move", help="Also if the tag names another turn.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the tag.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Name a turn, so that it stays and tag:NAME stands for it; or list or remove such names."""
    if name is None:
        answer = call(url, "turn_log", {"all_tags": True})
        end_with_json(answer["tags"], as_json=as_json)
        rows = [
            (each["tag"], each["turn"], each["session_id"], each["author"], moment(each["created_at"]))
            for each in answer["tags"]
        ]
        print_table(("TAG", "TURN", "SESSION", "BY", "SINCE"), rows, none="There are no tags.")
        return
    action = "delete" if delete else "move" if move else "create"
    answer = call(url, "turn_tag", {"tag": name, "turn": turn, "action": action})
    end_with_json(answer, as_json=as_json)
    print(
        f"{'Removed t' if delete else 'T'}ag {name} {'of' if delete else 'names'} {answer['turn']} of session {answer['session_id']}."
    )


def _row(turn: Mapping[str, Any], current: str | None, tags: Sequence[str]) -> tuple[str, ...]:
    origin = f"{turn['relation']} {turn['parent']} at {turn['parent_at']:,}" if "parent" in turn else ""
    return (
        "*" if turn["id"] == current else "",
        str(turn["number"]),
        turn["id"],
        comma_list(tags),
        origin,
        f"{turn['token_count']:,}" if turn["state"] == "ended" else turn["state"],
        " ".join(
            [
                f"{turn[name]:,}" if name == "cached_tokens" else turn[name]
                for name in ("cached_tokens", "missed")
                if name in turn
            ]
        ),
        f"{turn['first_token_ms']:,} ms" if "first_token_ms" in turn else "",
        ": ".join([*([str(turn["diverged_at"])] if "diverged_at" in turn else []), _reason(turn)])
        if "cause" in turn
        else "",
        turn.get("line", ""),
        moment(turn["asked_at"]),
        turn.get("client", ""),
    )


def _reason(turn: Mapping[str, Any]) -> str:
    return f"{turn['cause']}, {turn['habit']}" if "habit" in turn else str(turn["cause"])
