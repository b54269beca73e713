"""Tracing: spans that show where a request's time goes, independent of the collector.

Attributes never hold prompts, results, arguments, tokens or secrets. Names that a caller chose must pass through
:func:`named` first.
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
"""``traceparent`` and ``tracestate`` headers as W3C defines them; empty without a trace."""

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

_PARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})")
_NAME: Final = re.compile(r"[A-Za-z0-9_./:@-]{1,128}")


class SpanKind(Enum):
    INTERNAL = "internal"
    CLIENT = "client"


def trace_id_of(carrier: Carrier) -> str | None:
    """The id of a trace, 32 hexadecimal digits; None without one, and for one that is not kept."""
    match = _PARENT.fullmatch(carrier.get("traceparent", ""))
    return match[1] if match is not None and int(match[2], 16) & 1 else None


class Span(Protocol):
    """One timed operation.

    An exception that leaves it marks it as failed, with the error code or else the exception class.
    """

    def note(self, attributes: Attributes) -> None: ...

    def rename(self, name: str) -> None: ...

    def failed(self, error_type: str) -> None:
        """Mark as failed without an exception. Only the first call has an effect."""

    @property
    def carrier(self) -> Carrier:
        """The headers to send along, so that the receiver's spans become children of this one."""


class Tracer(Protocol):
    @property
    def on(self) -> bool:
        """Whether tracing is enabled."""

    def span(
        self, name: str, kind: SpanKind = SpanKind.INTERNAL, attributes: Attributes = NOTHING
    ) -> AbstractContextManager[Span]:
        """A span that becomes the parent of spans opened inside it. Enter and leave it in the same task."""

    def call(self, name: str, attributes: Attributes = NOTHING) -> AbstractContextManager[Span]:
        """An outgoing request, as a child of the current span; nothing without one.

        Only spans that get its carrier become its children, so it may outlive the block, as a generator does.
        """

    def request(
        self, name: str, came_with: Carrier, attributes: Attributes = NOTHING, started_ns: int | None = None
    ) -> AbstractContextManager[Span]:
        """An incoming request. Its parent is ``came_with``, else the current span, else it starts a new trace."""

    def received(self, came_with: Carrier) -> AbstractContextManager[None]:
        """Spans opened inside belong to the sender's trace."""

    def current(self) -> Span:
        """The current span."""

    def carrier(self) -> Carrier:
        """The carrier of the current span."""

    async def aclose(self) -> None:
        """Send the remaining spans, within a few seconds."""


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
    """The tracer that does nothing; it costs almost no time."""

    @property
    @override
    def on(self) -> bool:
        return False

    @override
    def span(
        self, name: str, kind: SpanKind = SpanKind.INTERNAL, attributes: Attributes = NOTHING
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


def named(value: object) -> str | None:
    """``value`` if it is a safe name: 1 to 128 letters, digits and ``_./:@-``; else None."""
    return value if isinstance(value, str) and _NAME.fullmatch(value) else None
