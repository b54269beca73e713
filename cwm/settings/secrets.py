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
    values = set()
    for url in urls:
        try:
            password = urlsplit(url).password
        except ValueError:
            continue
        if password:
            values |= {password, unquote(password)}
    return values


def secrets_of(upstreams: Iterable[UpstreamSpec]) -> set[str]:
    """All headers and token exchange secrets.

    Of the environment of stdio upstreams, the variables named like secrets.
    """
    values = set()
    for spec in upstreams:
        values |= {_SCHEME.sub("", value) for value in spec.headers.values()}
        values |= {value for name, value in spec.env.items() if _NAMED_SO.search(name)}
        if spec.exchange is not None:
            values.add(spec.exchange.client_secret)
    return values
