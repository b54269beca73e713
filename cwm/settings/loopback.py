"""Which hosts are this machine."""

from __future__ import annotations

import ipaddress


def on_loopback(host: str) -> bool:
    """True for ``localhost`` and the loopback addresses; no name is resolved."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
