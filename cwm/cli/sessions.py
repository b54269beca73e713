"""``cwm sessions …``: works with the sessions of a running gateway."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

import typer

from cwm.cli.gateway.client import JsonOption, UrlOption, call
from cwm.cli.terminal.console import (
    USAGE,
    RawOption,
    confirm_deletion,
    end_with_json,
    fail,
    on_terminal,
    print_table,
    print_text,
)
from cwm.cli.terminal.wording import count, moment
from cwm.cli.windows import OnlyVisibility, Visibility, VisibilityOption, print_status

app = typer.Typer(
    no_args_is_help=True, help="List, open, show, continue, merge and delete sessions of a running gateway."
)

SessionId = Annotated[str, typer.Argument(help="Id of the session.", metavar="SESSION")]


@app.command("list")
def list_sessions(
    state: Annotated[
        Literal["active", "frozen", "thawed", "expired"] | None,
        typer.Option(help="Only sessions in this state."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Sessions to show.")] = 50,
    visibility: OnlyVisibility = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """List the sessions, newest first."""
    answer = call(url, "session_list", {"state_filter": state, "limit": limit, "visibility": visibility})
    end_with_json(answer, as_json=as_json)
    print_table(
        ("ID", "STATE", "TOKENS", "MODEL", "CREATED", "VISIBILITY", "OWNER"),
        [_row(session) for session in answer["sessions"]],
        none=f"No session is {state}." if state else "There are no sessions.",
    )


@app.command()
def create(
    session: Annotated[
        str | None, typer.Option("--id", help="Id of the session; default: a generated one.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model; default: the first that the engine serves.")
    ] = None,
    visibility: VisibilityOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Create an empty session and print its id."""
    answer = call(url, "session_create", {"session_id": session, "model": model, "visibility": visibility})
    end_with_json(answer, as_json=as_json)
    print(answer["session_id"])


@app.command()
def show(
    session: SessionId,
    blocks: Annotated[bool, typer.Option("--blocks", help="Add each block: hash, bytes, tier.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Show a session and where its blocks are now."""
    answer = call(url, "window_status", {"session_id": session, "include_blocks": blocks})
    print_status(answer, as_json=as_json)


@app.command()
def generate(
    session: SessionId,
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="The user's message; '-' reads standard input.")
    ] = None,
    text: Annotated[
        str | None, typer.Option("--text", help="Append this text unchanged, without the chat template.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message before it; for the first turn.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum length of the answer in tokens.")] = 256,
    temperature: Annotated[float | None, typer.Option(min=0, max=2, help="0 is greedy.")] = None,
    raw: RawOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Send a message in a session and print the answer as it arrives."""
    content = _standard_input() if message == "-" else message
    if (content is None) == (text is None):
        fail("CWM-1003", "Give either --message or --text.", USAGE)
    if system is not None and content is None:
        fail("CWM-1003", "--system needs --message: a --text is appended unchanged.", USAGE)
    live = on_terminal() and not as_json
    pieces: list[str] = []
    answer = call(
        url,
        "session_generate",
        {
            "session_id": session,
            "messages": None if content is None else _messages(system, content),
            "text": text,
            "max_tokens": max_tokens,
            "temperature": temperature,
        },
        on_piece=(lambda piece: _say(piece, pieces, raw=raw)) if live else None,
    )
    end_with_json(answer, as_json=as_json)
    print_text(answer["text"].removeprefix("".join(pieces)), raw=raw)
    print(
        f"{answer['token_count']:,} tokens in the session; of {answer['prompt_tokens']:,} prompt tokens "
        f"{answer['cached_tokens']:,} were cached.",
        file=sys.stderr,
    )


@app.command()
def unfreeze(session: SessionId, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Let a frozen session take turns again; its windows stay."""
    answer = call(url, "session_unfreeze", {"session_id": session})
    end_with_json(answer, as_json=as_json)
    print(f"Session {session} is {answer['state']}.")


@app.command()
def merge(
    source: Annotated[str, typer.Argument(help="Id of the session that ends.", metavar="FROM")],
    target: Annotated[str, typer.Argument(help="Id of the session that gets its turns.", metavar="INTO")],
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Make the turns of one session branches of another; its windows and tags move along."""
    answer = call(url, "session_merge", {"session_id": source, "into_session": target})
    end_with_json(answer, as_json=as_json)
    print(f"Session {target} has {count(answer['turn_count'], 'turn')}; {source} ended.")


@app.command()
def share(
    session: SessionId, visibility: Visibility, as_json: JsonOption = False, url: UrlOption = None
) -> None:
    """Say who may see a session of yours, read it, go on with it and delete it."""
    answer = call(url, "session_share", {"session_id": session, "visibility": visibility})
    end_with_json(answer, as_json=as_json)
    print(f"Session {session}: {answer['visibility']}.")


@app.command()
def delete(
    session: SessionId,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask for confirmation on a terminal.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Delete a session and the blocks that nothing else uses; windows frozen from it stay."""
    confirm_deletion(f"session {session}", yes=yes)
    answer = call(url, "session_delete", {"session_id": session})
    end_with_json(answer, as_json=as_json)
    print(f"Deleted session {session}.")


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError:
        fail("CWM-1003", "Standard input is not text.", USAGE)


def _messages(system: str | None, content: str) -> list[dict[str, str]]:
    opening = [{"role": "system", "content": system}] if system else []
    return [*opening, {"role": "user", "content": content}]


def _say(piece: str, pieces: list[str], *, raw: bool) -> None:
    pieces.append(piece)
    print_text(piece, raw=raw, end="")


def _row(session: dict[str, Any]) -> tuple[str, ...]:
    return (
        session["id"],
        session["state"],
        f"{session['token_count']:,}",
        session["model"],
        moment(session["created_at"]),
        session["visibility"],
        session["owner"],
    )
