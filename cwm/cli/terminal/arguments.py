"""What Typer says of arguments that it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperGroup
from typer.exceptions import TyperException

from cwm.domain.visible_text import visible


class Commands(TyperGroup):
    """Shows a refused argument with signs in place of what a terminal would obey: rich prints such an error past ``sys.stderr``."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        with _visible_refusal():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _visible_refusal():
            return super().invoke(ctx)


@contextmanager
def _visible_refusal() -> Iterator[None]:
    try:
        yield
    except TyperException as refusal:
        refusal.message = visible(refusal.message)
        raise
