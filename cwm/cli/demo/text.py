"""What the demo's agent reads, and how the demo speaks."""

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
    from rich.console import Console
    from rich.status import Status

MODULES: Final = ("textwrap", "heapq", "bisect", "fnmatch", "shlex")
FOLLOW_UP: Final = "Think back to the first file. In one sentence: what is textwrap.py for?"
_EXCERPT_CHARS: Final = 200
_STARTING: Final = re.compile(r" is starting \(\d+ s\)$")


def source_of(module: str) -> str:
    """The source of a module of the standard library: real text on any machine with Python."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"Python's own {module}.py is not on this machine.")
    return Path(spec.origin).read_text(encoding="utf-8")


def reading(module: str, passage: str) -> str:
    """What the agent says when it has read a passage."""
    return f"This is from Python's {module}.py:\n\n{passage}\n\nIn one sentence: what is {module}.py for?"


def cut(text: str, share: float) -> str:
    """About ``share`` (0-1) of a text, ending with a whole line."""
    end = int(len(text) * min(share, 1.0))
    return text[: text.rfind("\n", 0, end) + 1] or text[:end]


class Narrator:
    """Tells the story: lines, and a spinner on a terminal while something takes its time."""

    def __init__(self, *, to_stderr: bool) -> None:
        self._stream = sys.stderr if to_stderr else sys.stdout
        self._console: Console | None = None
        self._spinner: Status | None = None
        if self._stream.isatty():
            from rich.console import Console

            self._console = Console(file=self._stream, highlight=False)

    def step(self, title: str) -> None:
        self._print(f"\n{title}", style="bold")

    def line(self, text: str) -> None:
        self._print(f"  {text}")

    def report(self, text: str) -> None:
        """What the engine's parts say of themselves; on a terminal the spinner tells how long they take."""
        if self._spinner is not None and _STARTING.search(text):
            self._spinner.update(f"{text} …")
        else:
            self.line(text)

    def quote(self, text: str) -> None:
        """The start of what a model said, in one paragraph."""
        flat = " ".join(text.split())
        shown = flat if len(flat) <= _EXCERPT_CHARS else flat[:_EXCERPT_CHARS].rsplit(" ", 1)[0] + " …"
        self._print(
            textwrap.fill(shown or "(nothing)", 96, initial_indent="    » ", subsequent_indent="      ")
        )

    def facts(self, facts: Sequence[tuple[str, str]]) -> None:
        width = max(len(name) for name, _ in facts)
        for name, value in facts:
            self._print(f"  {name:<{width}}  {value}")

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """``what`` is shown until it is done."""
        if self._console is None:
            self.line(f"{what} …")
            yield
            return
        with self._console.status(f"{what} …") as self._spinner:
            yield
        self._spinner = None

    def _print(self, text: str, style: str | None = None) -> None:
        if self._console is None:
            print(text, file=self._stream, flush=True)
        else:
            self._console.print(text, style=style, markup=False)
