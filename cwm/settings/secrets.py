"""Collects the values of the settings that are secret."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote, urlsplit

from cwm.domain.upstream import UpstreamSpec

_SCHEME: Final = re.compile(r"^(?:bearer|basic|token)\s+", re.IGNORECASE)
_NAMED_SO: Final = re.compile(r"secret|token|passw|key|credential|auth", re.IGNORECASE)


def passwords(urls: Iterable[str]) -> set[str]:
    """Passwords inside URLs, both as written and percent-decoded."""
    found = set()
    for url in urls:
        try:
            password = urlsplit(url).password
        except ValueError:
            continue
        if password:
            found |= {password, unquote(password)}
    return found


def secrets_of(upstreams: Iterable[UpstreamSpec]) -> set[str]:
    """All headers and token exchange secrets.

    Of the environment of stdio upstreams, the variables named like secrets.
    """
    found = set()
    for spec in upstreams:
        found |= {_SCHEME.sub("", value) for value in spec.headers.values()}
        found |= {value for name, value in spec.env.items() if _NAMED_SO.search(name)}
        if spec.exchange is not None:
            found.add(spec.exchange.client_secret)
    return found
