"""Origins of web pages, and addresses that only the machine itself should contact."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_HOST: Final = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")
# Metadata services, from which cloud machines get credentials, besides the link-local addresses.
_METADATA_NAMES: Final = frozenset(
    {"metadata", "metadata.google.internal", "instance-data", "instance-data.ec2.internal"}
)
_METADATA: Final = tuple(map(ip_network, ("100.100.100.200/32", "168.63.129.16/32", "fd00:ec2::254/128")))
_NAT64: Final = ip_network("64:ff9b::/96")


def origin_of(text: str) -> str | None:
    """``scheme://host[:port]`` in canonical form, without the scheme's default port; None when it is not an origin."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _DEFAULT_PORTS or not _HOST.fullmatch(parts.hostname or "") or "@" in parts.netloc:
        return None
    if parts.path or parts.query or parts.fragment:
        return None
    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
    return f"{parts.scheme}://{host}" + ("" if port in {None, _DEFAULT_PORTS[parts.scheme]} else f":{port}")


def is_link_local(host: str) -> bool:
    """Whether it is a link-local or metadata address, or a name that clouds give these.

    Other names are not resolved.
    """
    name = host.lower().strip("[]").rstrip(".")
    if name in _METADATA_NAMES:
        return True
    try:
        address = ip_address(name.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv6Address):
        address = _inside(address)
    return address.is_link_local or any(address in network for network in _METADATA)


def is_public(address: str) -> bool:
    """Whether an IP address is of the public internet."""
    inner = ip_address(address.partition("%")[0])
    if isinstance(inner, IPv6Address):
        inner = _inside(inner)
    return inner.is_global and not inner.is_multicast and not is_link_local(address)


def _inside(address: IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address embedded in an IPv6 address, else the address itself."""
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address
