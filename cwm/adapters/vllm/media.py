"""From where the engine may fetch the images, audio and video of a message."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from cwm.domain.errors import InvalidParameterError
from cwm.domain.web_origin import is_link_local, is_public

_SETTING: Final = "CWM_PRIVATE_MEDIA"
_PATIENCE_SECONDS: Final = 5.0
# Two parsers may read different hosts from a URL that has one of these.
_AMBIGUOUS: Final = re.compile(r"[\\\x00-\x20\x7f]")


@dataclass(frozen=True, slots=True)
class MediaRule:
    """Allows inline media, and media at public addresses; ``private`` allows all.

    A name may resolve differently for the engine: its own rule (``--allowed-media-domains``) stands behind this one.
    """

    private: bool = False

    async def require(self, messages: Any) -> None:
        """CWM-1003 for a URL in ``messages`` that leads into a private network, or that is no HTTP URL."""
        if self.private:
            return
        for url in _urls(messages):
            if url[:5].lower() != "data:" and not await _is_public(url):
                raise InvalidParameterError(
                    "A message has media at an address that is not public, not known or not http(s). Send the media "
                    f"inline, as a data: URL, or set {_SETTING}.",
                    field="messages",
                    setting=_SETTING,
                )


def _urls(messages: Any) -> Iterator[str]:
    for message in messages if isinstance(messages, list | tuple) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            yield from _urls_of(part)


def _urls_of(part: Any) -> Iterator[str]:
    """The values of ``image_url`` and the like: a URL, or an object with one."""
    for name, value in part.items() if isinstance(part, dict) else ():
        inner = value.get("url") if isinstance(value, dict) else value
        if name.endswith("url") and isinstance(inner, str):
            yield inner


async def _is_public(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    if parts.scheme not in {"http", "https"} or not host or "@" in parts.netloc or _AMBIGUOUS.search(url):
        return False
    if is_link_local(host):
        return False
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            addresses = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError):
        return False
    return all(is_public(str(address[0])) for *_, address in addresses)
