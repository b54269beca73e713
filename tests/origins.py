"""Requests as if they came from somewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cwm.domain.origin import ORIGIN, Face, Origin


@contextmanager
def coming_from(address: str) -> Iterator[None]:
    token = ORIGIN.set(Origin(Face.MCP, address))
    try:
        yield
    finally:
        ORIGIN.reset(token)
