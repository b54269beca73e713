"""Sessions with upstream MCP servers of either protocol era."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from cwm.domain.upstream import Definition, OfferKind, UpstreamSpec


class Progress(Protocol):
    """Called when the upstream reports progress."""

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None: ...


OnLog = Callable[[str, str | None, Any], None]
"""Called with the level, the logger's name and the data of each message that the upstream logs during a request."""

Heard = Callable[[OfferKind | str], None]
"""Called with the kind of a list that changed, or with the URI of a resource that changed. Must not block."""


class Denial(str):
    """The reason why an upstream rejects a caller, who gets no further with a retry."""

    __slots__ = ()


class UpstreamError(Exception):
    """Base of all upstream errors. The message may be shown to clients: it contains no secret."""

    @property
    def reason(self) -> str:
        return str(self)


class UpstreamAwayError(UpstreamError):
    """The upstream cannot be reached or does not speak MCP. The request was not carried out."""


class UpstreamDeniedError(UpstreamAwayError):
    """The upstream is reachable but rejects this caller."""

    @property
    def reason(self) -> str:
        return Denial(self)


class UpstreamExpiredError(UpstreamError):
    """The upstream no longer knows our session. The request was not carried out."""


class UpstreamLostError(UpstreamError):
    """The connection was lost after the request was sent: it may or may not have been carried out."""


class UpstreamSlowError(UpstreamLostError):
    """The upstream took too long: the request may have been carried out, or may still be."""


class UpstreamRefusedError(UpstreamError):
    """The upstream returned a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class UpstreamBusyError(UpstreamError):
    """The upstream takes no requests now. This one was not carried out. ``retry_after``: seconds, if it says."""

    def __init__(self, message: str, *, status: int, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after

    @property
    def may_be_down(self) -> bool:
        """Whether it says so to everybody, not to a caller who asked too often."""
        return self.status != HTTPStatus.TOO_MANY_REQUESTS


class UpstreamRejectedError(UpstreamError):
    """The upstream rejects the request with an HTTP status; the same request would be rejected again."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class UpstreamOversizeError(UpstreamError):
    """The upstream sent a larger message than ``message_bytes``, which was dropped. The request was carried out."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What an upstream lists of one kind. ``missing`` says what was left out and why; None if nothing was."""

    definitions: tuple[Definition, ...] = ()
    missing: str | None = None


class UpstreamSession(Protocol):
    """One MCP session with one upstream, used concurrently."""

    @property
    def modern(self) -> bool:
        """Whether the upstream speaks 2026-07-28, which has no sessions: over HTTP, none of its state is per session."""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """ServerCapabilities in MCP's JSON form."""

    @property
    def instructions(self) -> str | None:
        """What the upstream tells models of itself when a session begins."""

    @property
    def resume_with(self) -> str | None:
        """A token with which another replica can resume this session; None when it cannot be resumed."""

    @property
    def is_open(self) -> bool:
        """False once the session was lost or closed."""

    @property
    def hears(self) -> bool:
        """Whether it would learn now of other offers, or of an upstream that was restarted, without a request."""

    async def ended(self) -> None:
        """Wait until the session is lost or closed."""

    async def definitions(self, kind: OfferKind) -> Listing:
        """Everything of one kind, from all pages, within the upstream's limits; empty when it does not offer this kind."""

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        timeout_seconds: float,
        total_seconds: float = 0.0,
        authorization: str | None = None,
        on_progress: Progress | None = None,
        on_log: OnLog | None = None,
    ) -> dict[str, Any]:
        """Send ``tools/call`` or a similar request and return its result in MCP's JSON form. Raises UpstreamError.

        Each report of progress gives it ``timeout_seconds`` more, up to ``total_seconds`` from its start.

        The client capabilities in the ``_meta`` of ``params`` are forwarded to an upstream of 2026-07-28: it may
        ask for input only in the ways that they list.
        """

    async def watch(self, uri: str, authorization: str | None = None) -> None:
        """Subscribe to the resource: ``heard`` is called when it changes.

        Does nothing if the upstream has no subscriptions. ``authorization`` as for ``request``. Raises
        UpstreamError.
        """

    async def unwatch(self, uri: str) -> None: ...

    def retire(self, *, end: bool) -> None:
        """Close the session once its running requests have been answered. ``end`` as for ``close``."""

    async def close(self, *, end: bool) -> None:
        """Close the session. With ``end``, the upstream is told that it will not be used again. Never raises.

        It is closed also when the caller is cancelled during that notification.
        """


class UpstreamConnector(Protocol):
    async def open(
        self,
        spec: UpstreamSpec,
        *,
        authorization: str | None = None,
        resume: str | None = None,
        heard: Heard | None = None,
    ) -> UpstreamSession:
        """Open a session, or resume the one that ``resume`` stands for. Raises UpstreamAwayError.

        ``authorization`` is the caller's header, for upstreams that use the caller's credentials; empty for a
        caller without one.
        """
