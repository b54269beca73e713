"""Rich's console for CWM's commands. Imported on use: most commands need no rich."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from cwm.cli.terminal.output import as_it_is
from cwm.domain.visible_text import visible


class Colours(Console):
    """Colours of CWM's own alone: text has signs in place of what a terminal would obey, and nothing in it is markup."""

    def __init__(self, *, stderr: bool = False) -> None:
        # Named: a spinner puts another stream in the place of ``sys.stdout``.
        stream = as_it_is(sys.stderr if stderr else sys.stdout)
        super().__init__(file=stream, markup=False, emoji=False, highlight=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        return _visible(super().render(renderable, options))


def _visible(segments: Iterable[Segment]) -> Iterator[Segment]:
    for segment in segments:
        yield segment if segment.control else Segment(visible(segment.text), segment.style)
