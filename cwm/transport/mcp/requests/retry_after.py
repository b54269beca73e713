"""Sets ``Retry-After`` on the HTTP answer to a message that was over a limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.types import Message, Send

from cwm.domain.errors import CwmError, LimitError
from cwm.transport.mcp.requests.agent import Context

REFUSED: Final = "cwm.refused"
"""Key of the ASGI scope with the request's ``Refused``."""

_TOO_MANY: Final = 429


@dataclass(slots=True)
class Refused:
    """Carries a limit's refusal from the message's handler to the head of the HTTP answer.

    ``retry_after_seconds`` is None if no limit was exceeded; ``as_429`` is true if the whole request was refused.
    """

    retry_after_seconds: int | None = None
    as_429: bool = False

    def on(self, send: Send) -> Send:
        """A ``send`` that delays the head until the first part of the body.

        In the handshake era the SDK sends the head before it looks at the message.
        """
        head: Message | None = None

        async def send_later(message: Message) -> None:
            nonlocal head
            if message["type"] == "http.response.start":
                head = message
                return
            if head is not None:
                first, head = head, None
                after = self.retry_after_seconds
                await send(first if after is None else self._marked(first, after))
            await send(message)

        return send_later

    def _marked(self, head: Message, after: int) -> Message:
        headers = [*head["headers"], (b"retry-after", b"%d" % after)]
        return {**head, "headers": headers, "status": _TOO_MANY if self.as_429 else head["status"]}


def tell_limit(context: Context | None, error: CwmError, *, as_429: bool = False) -> None:
    """Set ``Retry-After`` on the HTTP answer, if there is one and ``error`` is a limit's."""
    request = None if context is None else context.request
    if not isinstance(error, LimitError) or request is None:
        return
    refusal = request.scope.get(REFUSED)
    if isinstance(refusal, Refused):
        refusal.retry_after_seconds, refusal.as_429 = error.retry_after_seconds, as_429
