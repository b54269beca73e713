"""Who the client is: what its connection says, or what proxies that are trusted wrote."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest
from pydantic import ValidationError
from starlette.types import Receive, Scope, Send

from cwm.domain.origin import ORIGIN, Face, Origin
from cwm.settings import Http
from cwm.transport.http.origin import OriginLayer


async def origin_of(
    peer: str | None = "198.51.100.7",
    *forwarded: str,
    trusted: str = "",
    path: str = "/mcp",
    headers: dict[str, str] | None = None,
) -> Origin:
    """What the application behind the layer is told."""
    told: list[Origin] = []

    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        told.append(ORIGIN.get())

    named = [("x-forwarded-for", value) for value in forwarded] + list((headers or {}).items())
    scope: dict[str, Any] = {
        "type": "http",
        "path": path,
        "client": None if peer is None else (peer, 1234),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in named],
    }
    nobody: Any = None
    before = ORIGIN.get()
    await OriginLayer(app, Http(trusted_proxies=trusted).proxies())(scope, nobody, nobody)
    assert ORIGIN.get() is before
    return told[0]


async def address_of(
    peer: str | None, *forwarded: str, trusted: str = "10.0.0.0/8, 2001:db8::/32"
) -> str | None:
    return (await origin_of(peer, *forwarded, trusted=trusted)).address


async def test_the_client_is_the_peer_whatever_it_says() -> None:
    assert await address_of("198.51.100.7", "192.0.2.1") == "198.51.100.7"
    assert await address_of("10.0.0.1", "192.0.2.1", trusted="") == "10.0.0.1"
    assert await address_of(None, "192.0.2.1") is None


async def test_a_trusted_proxy_says_who_the_client_is() -> None:
    assert await address_of("10.0.0.1", "192.0.2.1") == "192.0.2.1"
    assert await address_of("10.0.0.1") == "10.0.0.1"
    assert await address_of("2001:db8::1", "[2001:db9::5]:443") == "2001:db9::5"
    assert await address_of("10.0.0.1", "192.0.2.1:8080") == "192.0.2.1"
    assert await address_of("::ffff:10.0.0.1", "::ffff:192.0.2.1") == "192.0.2.1"


async def test_only_what_trusted_proxies_wrote_is_believed() -> None:
    assert await address_of("10.0.0.1", "203.0.113.9, 192.0.2.1, 10.0.0.2") == "192.0.2.1"
    assert await address_of("10.0.0.1", "203.0.113.9", "192.0.2.1") == "192.0.2.1"
    assert await address_of("10.0.0.1", "10.0.0.3, 10.0.0.2") == "10.0.0.3"


async def test_a_hop_that_is_no_address_ends_the_way_back() -> None:
    assert await address_of("10.0.0.1", "192.0.2.1, unknown") == "10.0.0.1"
    assert await address_of("10.0.0.1", "192.0.2.1, <script>, 10.0.0.2") == "10.0.0.2"
    assert await address_of("10.0.0.1", ",".join(["192.0.2.1"] + ["10.0.0.2"] * 10_000)) == "10.0.0.2"


@pytest.mark.parametrize(
    ("path", "face"), [("/mcp", Face.MCP), ("/v1/models", Face.OPENAI), ("/reconcile", Face.HTTP)]
)
async def test_the_face_and_the_user_agent_are_told(path: str, face: Face) -> None:
    told = await origin_of(path=path, headers={"user-agent": "agent/1 \x7f"})
    assert (told.face, told.user_agent) == (face, "agent/1 ?")


async def test_what_no_request_causes_comes_from_the_gateway() -> None:
    assert ORIGIN.get() == Origin(Face.GATEWAY)


def test_trusted_proxies_are_addresses_and_networks() -> None:
    assert Http(trusted_proxies="10.0.0.1, 10.1.0.0/16").proxies() == (
        ip_network("10.0.0.1/32"),
        ip_network("10.1.0.0/16"),
    )
    for wrong in ("proxy.local", "10.0.0.1/8", "*"):
        with pytest.raises(ValidationError):
            Http(trusted_proxies=wrong)
