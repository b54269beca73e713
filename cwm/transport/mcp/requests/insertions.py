"""Puts JSON that is encoded already into an HTTP answer, in place of a placeholder that the SDK encoded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from starlette.types import Message, Send

from cwm.transport.mcp.requests.agent import Context

INSERTIONS: Final = "cwm.insertions"
"""Key of the ASGI scope with the request's ``Insertions``."""

_LENGTH: Final = b"content-length"


@dataclass(slots=True)
class Insertions:
    """What replaces each placeholder, as it stands in the answer, which has the rest in one piece."""

    texts: dict[bytes, bytes] = field(default_factory=dict)

    def on(self, send: Send) -> Send:
        """A ``send`` that delays the head until the first part of the body, whose length it tells."""
        head: Message | None = None

        async def send_later(message: Message) -> None:
            nonlocal head
            if message["type"] == "http.response.start":
                head = message
                return
            body = message.get("body", b"")
            for placeholder, text in self.texts.items():
                if placeholder in body:
                    message = {**message, "body": (whole := body.replace(placeholder, text, 1))}
                    head = head and _longer(head, len(whole) - len(body))
                    body = whole
            if head is not None:
                first, head = head, None
                await send(first)
            await send(message)

        return send_later


def insertions_of(context: Context) -> Insertions | None:
    """None where the answer is no HTTP answer of :class:`SessionLayer`'s."""
    insertions = None if context.request is None else context.request.scope.get(INSERTIONS)
    return insertions if isinstance(insertions, Insertions) else None


def _longer(head: Message, by: int) -> Message:
    headers = [
        (name, b"%d" % (int(value) + by) if name.lower() == _LENGTH else value)
        for name, value in head["headers"]
    ]
    return {**head, "headers": headers}
