"""What a machine trusts is read once, however many engines there are."""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from cwm.adapters.http.trust import trusted
from cwm.adapters.lmcache.client import LmcacheTier
from cwm.adapters.vllm.client import VllmEngine
from cwm.settings import Engine


async def test_clients_of_many_engines_read_the_certificates_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Any] = []
    read = ssl.SSLContext.load_verify_locations

    def counted(context: ssl.SSLContext, *places: Any, **named: Any) -> None:
        reads.append(places)
        read(context, *places, **named)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", counted)
    trusted.cache_clear()
    settings = Engine(vllm_url="https://vllm.invalid", lmcache_url="https://lmcache.invalid")
    clients = [make(settings) for _ in range(3) for make in (VllmEngine, LmcacheTier)]
    for client in clients:
        await client.aclose()
    assert len(reads) == 1
    assert trusted().verify_mode is ssl.CERT_REQUIRED
