"""An upstream MCP server, of either protocol era."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from cwm.domain.upstream import Definition, Kind, UpstreamSpec


class Progress(Protocol):
    """Called as the upstream reports progress."""

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None: ...


Heard = Callable[[Kind | str], None]
"""Called with the kind of a list that changed, or with the URI of a resource that did. Must not block."""


class UpstreamError(Exception):
    """Base of what can go wrong with an upstream; the message may be shown, it holds no secret."""


class UpstreamAwayError(UpstreamError):
    """It cannot be reached or does not speak MCP. What was asked was not done."""


class UpstreamDeniedError(UpstreamAwayError):
    """It is there, and does not let this caller in."""


class UpstreamExpiredError(UpstreamError):
    """It does not know our session any more. What was asked was not done."""


class UpstreamLostError(UpstreamError):
    """It went away after it was asked: nobody knows whether that was done."""


class UpstreamSlowError(UpstreamLostError):
    """It took too long: nobody knows whether it was or will be done."""


class UpstreamRefusedError(UpstreamError):
    """It answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class UpstreamSession(Protocol):
    """One MCP session with one upstream; used by many at once."""

    @property
    def modern(self) -> bool:
        """The upstream speaks 2026-07-28, which has no sessions: over HTTP nothing of it is per session."""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """ServerCapabilities as MCP spells them."""

    @property
    def resume_with(self) -> str | None:
        """With this another replica can open the same session; None where that cannot be."""

    @property
    def is_open(self) -> bool:
        """False once it was lost or closed."""

    async def ended(self) -> None:
        """Returns when it is lost or closed."""

    async def definitions(self, kind: Kind) -> tuple[Definition, ...]:
        """Everything of one kind, all pages; empty when the upstream has no such kind."""

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        timeout_seconds: float,
        authorization: str | None = None,
        on_progress: Progress | None = None,
    ) -> dict[str, Any]:
        """The result of ``tools/call`` and its like, as MCP spells it. Raises UpstreamError.

        What ``params`` say in ``_meta`` of the client's capabilities is told to an upstream of 2026-07-28: it may
        ask for input that way, and for no other.
        """

    async def watch(self, uri: str, authorization: str | None = None) -> None:
        """Have ``heard`` called when this resource changes; an upstream that cannot tell never does.

        ``authorization`` as with ``request``. Raises UpstreamError.
        """

    async def unwatch(self, uri: str) -> None: ...

    def retire(self, *, end: bool) -> None:
        """Close it as soon as what is under way in it has been answered. ``end`` as with ``close``."""

    async def close(self, *, end: bool) -> None:
        """Let go of it. With ``end`` the upstream is told that nobody will use it again. Never raises.

        It is closed also when the caller is cancelled while it waits for that.
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
        """Open a session, or go on with the one ``resume`` stands for. Raises UpstreamAwayError.

        ``authorization`` is the caller's header, for upstreams whose credentials are the caller's; empty for
        a caller without.
        """
