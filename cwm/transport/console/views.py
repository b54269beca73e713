"""What every view is given, and how it reads what a page was asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from starlette.requests import Request

from cwm.domain.errors import InvalidParameterError
from cwm.domain.principal import Principal
from cwm.services.catalogue import Services
from cwm.transport.console.pages import Download, Page, Redirect
from cwm.transport.console.traces import NOWHERE, TraceLinks

_LONGEST = 1024


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for a page, and who asks."""

    services: Services
    principal: Principal
    request: Request
    traces: TraceLinks = NOWHERE

    def part(self, name: str) -> str:
        """A part of the path."""
        return str(self.request.path_params[name])

    def text(self, name: str) -> str:
        """A field of the query, without white space around it; empty if it is not there."""
        return self.request.query_params.get(name, "").strip()[:_LONGEST]

    def number(self, name: str) -> int | None:
        """A whole number of the query, at least 1. CWM-1003."""
        text = self.text(name)
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text)):
            raise InvalidParameterError(f"{name} is a whole number of at least 1.", field=name)
        return int(text)


View: TypeAlias = Callable[[Asked], Awaitable[Page | Download | Redirect]]
