"""Where a request's time goes: spans of a trace, without saying who collects them.

No attribute ever holds a prompt, a result, an argument, a token or a secret. Names that a caller chose go
through :func:`named` first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

from typing_extensions import override

Attributes: TypeAlias = Mapping[str, str | int | float | bool | Sequence[str]]
Carrier: TypeAlias = Mapping[str, str]
"""``traceparent`` and ``tracestate`` as W3C writes them; empty where there is no trace."""

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

_NAME: Final = re.compile(r"[A-Za-z0-9_./:@-]{1,128}")


class Kind(Enum):
    INTERNAL = "internal"
    CLIENT = "client"


class Span(Protocol):
    """One stretch of work. An exception that passes through fails it by its code, or else its class."""

    def note(self, attributes: Attributes) -> None: ...

    def rename(self, name: str) -> None: ...

    def failed(self, error_type: str) -> None:
        """For a failure that no exception tells. The first one counts."""

    @property
    def carrier(self) -> Carrier:
        """What to send along so that the receiver's spans come below this one."""


class Tracer(Protocol):
    @property
    def on(self) -> bool:
        """Whether anything is traced at all."""

    def span(
        self, name: str, kind: Kind = Kind.INTERNAL, attributes: Attributes = NOTHING
    ) -> AbstractContextManager[Span]:
        """What happens inside comes below it. Enter and leave it in one task."""

    def call(self, name: str, attributes: Attributes = NOTHING) -> AbstractContextManager[Span]:
        """A request to something outside, below the span that is open; without one, nothing.

        Nothing comes below it but what gets its carrier, so it may also last as long as a generator does.
        """

    def request(
        self, name: str, came_with: Carrier, attributes: Attributes = NOTHING, started_ns: int | None = None
    ) -> AbstractContextManager[Span]:
        """A request of somebody else, in the trace it came with, else in the one that is open, else in its own."""

    def received(self, came_with: Carrier) -> AbstractContextManager[None]:
        """What happens inside is in the trace of the sender."""

    def current(self) -> Span:
        """The span that is open here."""

    def carrier(self) -> Carrier:
        """That of the span that is open."""

    async def aclose(self) -> None:
        """Hand on what is still here, for a few seconds at most."""


class _NoSpan(Span):
    @property
    @override
    def carrier(self) -> Carrier:
        return NOTHING

    @override
    def note(self, attributes: Attributes) -> None: ...

    @override
    def rename(self, name: str) -> None: ...

    @override
    def failed(self, error_type: str) -> None: ...


NO_SPAN: Final[Span] = _NoSpan()
_NO_SPAN: Final = nullcontext(NO_SPAN)
_NOWHERE: Final = nullcontext()


class _Untraced(Tracer):
    """Costs next to nothing."""

    @property
    @override
    def on(self) -> bool:
        return False

    @override
    def span(
        self, name: str, kind: Kind = Kind.INTERNAL, attributes: Attributes = NOTHING
    ) -> AbstractContextManager[Span]:
        return _NO_SPAN

    @override
    def call(self, name: str, attributes: Attributes = NOTHING) -> AbstractContextManager[Span]:
        return _NO_SPAN

    @override
    def request(
        self, name: str, came_with: Carrier, attributes: Attributes = NOTHING, started_ns: int | None = None
    ) -> AbstractContextManager[Span]:
        return _NO_SPAN

    @override
    def received(self, came_with: Carrier) -> AbstractContextManager[None]:
        return _NOWHERE

    @override
    def current(self) -> Span:
        return NO_SPAN

    @override
    def carrier(self) -> Carrier:
        return NOTHING

    @override
    async def aclose(self) -> None: ...


UNTRACED: Final[Tracer] = _Untraced()


def named(chosen: object) -> str | None:
    """A name that a caller chose, if it looks like one: short, and of letters, digits and ``_./:@-``."""
    return chosen if isinstance(chosen, str) and _NAME.fullmatch(chosen) else None
