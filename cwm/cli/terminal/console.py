"""Shared by all commands: output, errors, flags and interrupts."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeAlias, TypeVar

import typer

from cwm.cli.terminal.output import as_it_is
from cwm.domain.visible_text import visible_in_line, visible_json

if TYPE_CHECKING:
    from cwm.settings import Group, Settings

OK, FOUND_FAULTS, USAGE, INTERRUPTED = 0, 1, 2, 130

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
RawOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--raw", help="Write what was said as it is, for a file: a terminal would obey what is in it."
    ),
]

T = TypeVar("T")


class _Lines:
    """Where a command's own lines go: to people, or into the log, if that is to be JSON to the last line."""

    into_log = False


def lines_into_log(level: str) -> None:
    """From now on write progress, errors and uncaught exceptions to the log, as JSON."""
    from cwm.adapters.telemetry.logging import configure_logging

    _Lines.into_log = True
    configure_logging(level, "json")
    sys.excepthook = lambda _, error, __: logging.getLogger("cwm").critical("crashed", exc_info=error)


def fail(code: str, message: str, status: int = FOUND_FAULTS) -> NoReturn:
    """Print one sentence with an error code to stderr and exit."""
    if _Lines.into_log:
        import structlog

        structlog.get_logger("cwm").error(message, code=code)
    else:
        print(f"{code}: {message}", file=sys.stderr)
    raise typer.Exit(status)


def tell(line: str, *, timed: bool = False) -> None:
    """Print a progress line; an output that cannot be written is ignored, because the command's work matters more.

    ``timed`` puts the time before it, which a log has anyway.
    """
    if _Lines.into_log:
        logging.getLogger("cwm").info(line)
        return
    line = f"{time.strftime('%H:%M:%S')}  {line}" if timed else line
    with suppress(OSError):
        print(line, flush=True)


def print_json(document: Any) -> None:
    # Escapes that another encoding adds would not be JSON escapes.
    has_all = (getattr(sys.stdout, "encoding", None) or "utf-8").lower() in {"utf-8", "utf8"}
    print(visible_json(json.dumps(document, indent=2, ensure_ascii=not has_all, default=str)))


def print_json_line(document: Any, default: Callable[[Any], Any] | None = None) -> None:
    print(visible_json(json.dumps(document, default=default)))


def end_with_json(document: Any, *, as_json: bool) -> None:
    """With ``as_json`` print the document and end the command; without it do nothing."""
    if as_json:
        print_json(document)
        raise typer.Exit(OK)


def print_text(text: str, *, raw: bool, end: str = "\n") -> None:
    """Print what was said: as a person can see it, or with ``raw`` as it is."""
    print(text, end=end, file=as_it_is(sys.stdout) if raw else sys.stdout, flush=True)


def on_terminal() -> bool:
    return sys.stdout.isatty()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, none: str = "") -> None:
    """Print columns of text: with rules on a terminal, plainly aligned in a file. Without rows, print ``none``."""
    rows = [[visible_in_line(cell) for cell in row] for row in rows]
    if not rows and none:
        print(none)
    elif on_terminal():
        _print_ruled(columns, rows)
    else:
        _print_aligned(columns, rows)


def confirm_deletion(what: str, *, yes: bool) -> None:
    """Ask on a terminal before ``what`` is deleted, unless ``yes``. A no ends the command."""
    if not yes and sys.stdin.isatty() and not typer.confirm(f"Delete {visible_in_line(what)} for good?"):
        raise typer.Exit(FOUND_FAULTS)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print one name and value per line, with the values aligned; further lines of a value begin where it does."""
    named = [(visible_in_line(name), value) for name, value in facts]
    width = max((len(name) for name, _ in named), default=0)
    for name, value in named:
        lines = value.replace("\n", "\n" + " " * (width + 2))
        print(f"{name:<{width}}  {lines}".rstrip())


def load_settings(*, upstreams: bool = True, **flags: Any) -> Settings:
    """The settings in force, with the given flags applied; an invalid one ends the command.

    Commands that serve no clients leave out the ``upstreams``, so that they do not need the upstreams' secrets.
    """
    from cwm import settings

    with expected_failures():
        return overridden(settings.load(upstreams=upstreams), flags)


def overridden(current_settings: Settings, flags: Mapping[str, Any]) -> Settings:
    """``current_settings`` with all flags that are not None, validated like any other value. Raises SettingsError."""
    from cwm import settings

    flag_values = {name: value for name, value in flags.items() if value is not None}
    revisions: dict[str, Any] = {}
    for title, group in settings.GROUPS.items():
        group_values = {name: flag_values.pop(name) for name in group.model_fields if name in flag_values}
        if group_values:
            revisions[title] = _revised(getattr(current_settings, title), group_values)
    if flag_values:
        raise KeyError(f"no setting is called {', '.join(sorted(flag_values))}")
    return replace(current_settings, **revisions)


def _revised(group: Group, values: Mapping[str, Any]) -> Group:
    from pydantic import ValidationError

    from cwm.settings import SettingsError
    from cwm.settings.fields import in_words

    try:
        return type(group)(**{**dict(group), **values})
    except ValidationError as invalid:
        first = invalid.errors(include_url=False, include_input=False)[0]
        name = str(first["loc"][0]).replace("_", "-")
        raise SettingsError(f"--{name}: {in_words(first)}.") from None


@contextmanager
def expected_failures() -> Iterator[None]:
    """Turn CWM's own errors into one sentence and an exit status.

    Other exceptions are bugs and keep their traceback.
    """
    from cwm.adapters.sql.schema_error import SchemaError
    from cwm.domain.errors import CwmError
    from cwm.settings import SettingsError
    from cwm.stack.errors import StackError

    try:
        yield
    except CwmError as error:
        fail(error.code, error.message)
    except SettingsError as error:
        fail("CWM-1003", str(error), USAGE)
    except SchemaError as error:
        fail("CWM-4002", str(error))
    except StackError as error:
        fail("CWM-5001", sentence(str(error)))


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


class Interrupts:
    """Handles SIGINT and SIGTERM while a command runs: the first signal cancels its work, further ones do nothing.

    So a second Ctrl-C cannot interrupt the clean-up. Call ``disarm`` for work that handles signals itself. A closed
    terminal (SIGHUP) counts as SIGTERM, unless ``nohup`` ignores it.
    """

    def __init__(self) -> None:
        self._work: asyncio.Task[Any] | None = None

    def disarm(self) -> None:
        self._work = None

    async def watch(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        self._work = task
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._interrupt)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, signal.raise_signal, signal.SIGTERM)
        try:
            return await task
        finally:
            self.disarm()

    def _interrupt(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.cancel()


def run_to_end(work: Callable[[Interrupts], Coroutine[Any, Any, T]], *, fast: bool = False) -> T:
    """Run ``work`` and await its clean-up, also after Ctrl-C. ``fast`` uses uvloop."""
    interrupts = Interrupts()
    factory = _uvloop() if fast else None
    with expected_failures(), asyncio.Runner(loop_factory=factory) as runner:
        try:
            return runner.run(interrupts.watch(work(interrupts)))
        except asyncio.CancelledError:
            raise typer.Exit(INTERRUPTED) from None


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop]:
    import uvloop

    return uvloop.new_event_loop


def _print_ruled(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from cwm.cli.terminal.colours import Colours

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Colours().print(table)


def _print_aligned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [columns, *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())
