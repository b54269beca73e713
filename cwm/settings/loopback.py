"""Recognises hosts that are this machine."""

from __future__ import annotations

import ipaddress


def on_loopback(host: str) -> bool:
    """Whether ``host`` is ``localhost`` or a loopback address; other names are not resolved."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
