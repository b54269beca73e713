"""``cwm upstreams …``: what the tools of upstream servers are, and since when."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from cwm.cli.terminal.console import (
    Interrupts,
    JsonOption,
    end_with_json,
    load_settings,
    print_json,
    print_table,
    run_to_end,
)

if TYPE_CHECKING:
    from cwm.domain.upstream_tools import SeenTool
    from cwm.services.upstreams.tool_desk import ToolDesk

T = TypeVar("T")

_DIGEST_CHARS: Final = 12

app = typer.Typer(
    no_args_is_help=True,
    help="Show what tools upstream servers offer and since when, and accept changes, in the gateway's database "
    "(CWM_DATABASE_URL or CWM_DB_PATH).",
)

NameArgument = Annotated[str, typer.Argument(help="The upstream's name in cwm.yaml.", metavar="NAME")]


@app.command("list")
def list_upstreams(as_json: JsonOption = False) -> None:
    """List the upstreams that were seen, how many tools each offered, and how many of them changed since."""
    tools = _with_desk(lambda desk: desk.listed())
    by_upstream: dict[str, list[SeenTool]] = {}
    for each in tools:
        by_upstream.setdefault(each.upstream, []).append(each)
    end_with_json(
        {"upstreams": [_summary(name, versions) for name, versions in by_upstream.items()]}, as_json=as_json
    )
    print_table(
        ("UPSTREAM", "TOOLS", "CHANGED", "LAST CHANGE", "LISTED"),
        [
            (
                name,
                str(_tool_count(versions)),
                str(sum(each.accepted_at is None for each in versions)),
                f"{max(each.seen_at for each in versions):%Y-%m-%d %H:%M}",
                f"{max(each.offered_at for each in versions):%Y-%m-%d %H:%M}",
            )
            for name, versions in by_upstream.items()
        ],
        none="No gateway on this database has listed the tools of an upstream.",
    )


@app.command()
def show(name: NameArgument, as_json: JsonOption = False) -> None:
    """Show each tool of an upstream, and its instructions: since when it is what it is, and whether that was accepted."""
    tools = _with_desk(lambda desk: desk.listed(name))
    end_with_json({"upstream": name, "tools": [_document(each) for each in tools]}, as_json=as_json)
    print_table(
        ("TOOL", "STATE", "SINCE", "OFFERED", "DIGEST", "DESCRIPTION"),
        [
            (
                each.version.tool,
                _state(each),
                f"{each.seen_at:%Y-%m-%d %H:%M}",
                f"{each.offered_at:%Y-%m-%d %H:%M}",
                each.version.digest[:_DIGEST_CHARS],
                each.version.description,
            )
            for each in tools
        ],
    )


@app.command()
def accept(
    name: NameArgument,
    tools: Annotated[
        list[str] | None,
        typer.Argument(help="Names, as `show` has them; all if none is given.", metavar="[TOOL]..."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Accept tools and instructions as they are now: gateways no longer mark them as changed, and show those that were hidden."""
    versions = _with_desk(lambda desk: desk.accept(name, tools or ()))
    names = sorted({each.version.tool for each in versions})
    if as_json:
        print_json({"upstream": name, "accepted": names})
    elif names:
        print(f"Accepted {len(names)} of {name}: {', '.join(names)}.")
    else:
        print(f"Nothing of {name} has changed.")


def _with_desk(work: Callable[[ToolDesk], Awaitable[T]]) -> T:
    settings = load_settings(upstreams=False)

    async def run(_: Interrupts) -> T:
        from cwm.wiring.access import opened_tool_desk

        async with opened_tool_desk(settings) as desk:
            return await work(desk)

    return run_to_end(run)


def _summary(name: str, versions: Sequence[SeenTool]) -> dict[str, Any]:
    return {
        "upstream": name,
        "tools": _tool_count(versions),
        "changed": [each.version.tool for each in versions if each.accepted_at is None],
        "last_change": max(each.seen_at for each in versions).isoformat(),
        "listed": max(each.offered_at for each in versions).isoformat(),
    }


def _tool_count(versions: Sequence[SeenTool]) -> int:
    return sum(not each.version.is_instructions for each in versions)


def _document(each: SeenTool) -> dict[str, Any]:
    return {
        "tool": each.version.tool,
        "state": _state(each),
        "since": each.seen_at.isoformat(),
        "offered": each.offered_at.isoformat(),
        "digest": each.version.digest,
        "description": each.version.description,
    }


def _state(each: SeenTool) -> str:
    return "changed" if each.accepted_at is None else "accepted"
