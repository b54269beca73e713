"""The certificates that this machine trusts."""

from __future__ import annotations

import ssl
from functools import cache

import httpx2


@cache
def trusted() -> ssl.SSLContext:
    """Those for all connections of this process: to read them takes 30 ms, and a gateway has clients for each engine."""
    return httpx2.create_ssl_context(trust_env=False)
