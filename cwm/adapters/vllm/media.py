"""From where the engine may fetch the images, audio and video of a message."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from cwm.adapters.http.lookups import Lookups
from cwm.domain.errors import InvalidParameterError
from cwm.domain.principal import Principal
from cwm.domain.web_origin import is_link_local, is_public

_SETTING: Final = "CWM_PRIVATE_MEDIA"
# Of all names in one request together.
_LOOKUP_SECONDS: Final = 5.0
# At once, of a user and of a tenant. A silent name server keeps one going for some 20 s.
_LOOKUPS: Final = 2
_LOOKUPS_OF_TENANT: Final = 8
# Two parsers may read different hosts from a URL that has one of these.
_AMBIGUOUS: Final = re.compile(r"[\\\x00-\x20\x7f]")


@dataclass(frozen=True, slots=True)
class MediaRule:
    """Allows inline media, and media at public addresses; ``private`` allows all.

    A name may resolve differently for the engine: its own rule (``--allowed-media-domains``) stands behind this one.
    """

    private: bool = False
    lookup_seconds: float = _LOOKUP_SECONDS
    lookups: Lookups = field(default_factory=Lookups, compare=False)

    async def require(self, messages: Any, asker: Principal | None = None) -> None:
        """CWM-1003 for a URL in ``messages`` that leads into a private network, or that is no HTTP URL.

        Names that are not known within ``lookup_seconds`` count as unknown. ``asker``: whose request it is.
        """
        if self.private:
            return
        hosts = {_host(url) for url in _urls(messages) if url[:5].lower() != "data:"}
        try:
            async with asyncio.timeout(self.lookup_seconds):
                for host in hosts:
                    if host is None or not await self._is_public(host, asker):
                        raise _not_public()
        except TimeoutError:
            raise _not_public() from None

    async def _is_public(self, host: str, asker: Principal | None) -> bool:
        tenant, subject = ("", "") if asker is None else (asker.tenant, asker.subject)
        bounds = {tenant: _LOOKUPS_OF_TENANT, f"{tenant}/{subject}": _LOOKUPS}
        try:
            addresses = await self.lookups.look_up(host, bounds=bounds)
        except (OSError, UnicodeError):
            return False
        return all(is_public(str(address[0])) for *_, address in addresses)


def _not_public() -> InvalidParameterError:
    return InvalidParameterError(
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


def _host(url: str) -> str | None:
    """The host that an engine would ask; None if that is certain to be none, or not a public one."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return None
    if parts.scheme not in {"http", "https"} or not host or "@" in parts.netloc or _AMBIGUOUS.search(url):
        return None
    return None if is_link_local(host) else host
