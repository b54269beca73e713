"""The texts that the demo's agent reads, and the demo's output."""

from __future__ import annotations

import importlib.util
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.status import Status
    from rich.text import Text

    from cwm.cli.terminal.colours import Colours

MODULES: Final = ("textwrap", "heapq", "bisect", "fnmatch", "shlex")
FOLLOW_UP: Final = "Think back to the first file. In one sentence: what is textwrap.py for?"
_EXCERPT_CHARS: Final = 200
_STARTING: Final = re.compile(r" is starting \(\d+ s\)$")


def source_of(module: str) -> str:
    """The source of a standard library module: real text that every machine with Python has."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"Python's own {module}.py is not on this machine.")
    return Path(spec.origin).read_text(encoding="utf-8")


def reading(module: str, passage: str) -> str:
    """The agent's message about a passage."""
    return f"This is from Python's {module}.py:\n\n{passage}\n\nIn one sentence: what is {module}.py for?"


def cut(text: str, share: float) -> str:
    """About ``share`` (0-1) of a text, up to the end of a line."""
    end = int(len(text) * min(share, 1.0))
    return text[: text.rfind("\n", 0, end) + 1] or text[:end]


class Narrator:
    """Prints the demo's progress: lines, and on a terminal a spinner during long steps."""

    def __init__(self, *, to_stderr: bool) -> None:
        self._stream = sys.stderr if to_stderr else sys.stdout
        self._console: Colours | None = None
        self._spinner: Status | None = None
        if self._stream.isatty():
            from cwm.cli.terminal.colours import Colours

            self._console = Colours(stderr=to_stderr)

    def step(self, title: str) -> None:
        self._print(f"\n{title}", style="bold")

    def line(self, text: str) -> None:
        self._print(f"  {text}")

    def report(self, text: str) -> None:
        """Print a status line of the engine's parts. On a terminal, the spinner shows how long they take to start."""
        if self._spinner is not None and _STARTING.search(text):
            self._spinner.update(_waiting(text))
        else:
            self.line(text)

    def quote(self, text: str) -> None:
        """The start of a model's text, as one paragraph."""
        flat = " ".join(text.split())
        excerpt = flat if len(flat) <= _EXCERPT_CHARS else flat[:_EXCERPT_CHARS].rsplit(" ", 1)[0] + " …"
        self._print(
            textwrap.fill(excerpt or "(nothing)", 96, initial_indent="    » ", subsequent_indent="      ")
        )

    def facts(self, facts: Sequence[tuple[str, str]]) -> None:
        width = max(len(name) for name, _ in facts)
        for name, value in facts:
            self._print(f"  {name:<{width}}  {value}")

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Show ``what`` while the block runs."""
        if self._console is None:
            self.line(f"{what} …")
            yield
            return
        with self._console.status(_waiting(what)) as self._spinner:
            yield
        self._spinner = None

    def _print(self, text: str, style: str | None = None) -> None:
        if self._console is None:
            print(text, file=self._stream, flush=True)
        else:
            self._console.print(text, style=style)


def _waiting(what: str) -> Text:
    """As text, in which brackets are no markup."""
    from rich.text import Text

    return Text(f"{what} …")
