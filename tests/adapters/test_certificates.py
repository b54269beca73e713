"""Peers over TLS that speak none, or whose certificate is not accepted: who asks is told so, and where to look."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from pydantic import SecretStr

from cwm.adapters.lmcache.client import LmcacheTier
from cwm.adapters.oauth.fetch import Fetch
from cwm.adapters.redis.connection import connect, ping
from cwm.adapters.redis.room import shared_tier_room
from cwm.adapters.sql.database import open_database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.upstream.connector import SdkConnector
from cwm.adapters.upstream.exchange import TokenExchanger
from cwm.adapters.vllm.client import VllmEngine
from cwm.domain.errors import CwmError
from cwm.domain.upstream import TokenExchange, UpstreamSpec
from cwm.ports.upstream import UpstreamAwayError
from cwm.settings import Engine
from cwm.settings.urls import database_url
from tests.adapters.http.test_sockets import peer
from tests.certificates import certified

_UNKNOWN = "self-signed certificate"
_SSL_REQUEST_BYTES = 8


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[str]:
    """Of a server whose certificate nobody vouches for."""

    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    served, _ = certified(tmp_path)
    async with peer(serve, served) as address:
        yield address.rpartition(":")[2]


@pytest.fixture
async def postgres_port(tmp_path: Path) -> AsyncIterator[str]:
    """Of one that takes up TLS as Postgres does; its certificate is for localhost."""
    served, _ = certified(tmp_path)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(_SSL_REQUEST_BYTES)
        writer.write(b"S")
        await writer.start_tls(served)

    async with peer(serve) as address:
        yield address.rpartition(":")[2]


@pytest.mark.parametrize(
    ("host", "told"),
    [("127.0.0.1", "certificate is not valid for '127.0.0.1'"), ("localhost", _UNKNOWN)],
)
async def test_a_certificate_of_postgres_that_is_not_accepted_is_told_with_the_reason(
    postgres_port: str, tmp_path: Path, host: str, told: str
) -> None:
    trusted = tmp_path / "certificate.pem"
    if told == _UNKNOWN:
        (tmp_path / "other").mkdir()
        certified(tmp_path / "other")
        trusted = tmp_path / "other" / "certificate.pem"
    query = f"sslmode=verify-full&sslrootcert={trusted}"
    database = open_database(database_url(f"postgresql://cwm:hunter2@{host}:{postgres_port}/cwm?{query}"))
    with pytest.raises(CwmError) as failed:
        await SqlRegistry(database).ping()
    await database.dispose()
    assert failed.value.message.startswith("The database has a certificate that is not accepted: ")
    assert told in failed.value.message
    assert failed.value.message.endswith(". Check CWM_DATABASE_URL.")
    assert "hunter2" not in str(failed.value.as_dict())


async def test_a_root_certificate_of_postgres_that_no_setting_names_is_told_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PGSSLROOTCERT", raising=False)
    database = open_database(database_url("postgresql://cwm:hunter2@127.0.0.1:1/cwm?sslmode=verify-full"))
    with pytest.raises(CwmError) as failed:
        await SqlRegistry(database).ping()
    await database.dispose()
    assert failed.value.message == (
        f'The database cannot be asked: root certificate file "{tmp_path}/.postgresql/root.crt" does not '
        "exist or cannot be accessed. Check CWM_DATABASE_URL."
    )


async def _shared_store(at: str) -> None:
    client = connect(f"rediss://:hunter2@{at}/0")
    try:
        await ping(client)
    finally:
        await client.aclose()


async def _vllm(at: str) -> None:
    engine = VllmEngine(Engine(vllm_url=f"https://{at}", vllm_api_key=SecretStr("hunter2")))
    try:
        await engine.version()
    finally:
        await engine.aclose()


async def _lmcache(at: str) -> None:
    tier = LmcacheTier(Engine(lmcache_url=f"https://{at}", coordinator_url=f"https://{at}"))
    try:
        await tier.facts()
    finally:
        await tier.aclose()


async def _issuer(at: str) -> None:
    fetch = Fetch()
    try:
        await fetch.get(f"https://{at}/.well-known/openid-configuration")
    finally:
        await fetch.aclose()


_ASKED = pytest.mark.parametrize(
    ("ask", "subject", "setting"),
    [
        (_shared_store, "The shared store", "CWM_SHARED_STORE_URL"),
        (lambda at: shared_tier_room(f"rediss://:hunter2@{at}/0"), "Redis", "CWM_REDIS_URL"),
        (_vllm, "vLLM", "CWM_VLLM_URL"),
        (_lmcache, "LMCache", "CWM_LMCACHE_URL"),
        (_issuer, "The authorization server at localhost", ""),
    ],
)


@pytest.fixture
async def plain_port() -> AsyncIterator[str]:
    """Of a server that answers whatever it is sent in the clear."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        await reader.read()

    async with peer(serve) as address:
        yield address.rpartition(":")[2]


@_ASKED
async def test_a_peer_that_speaks_no_tls_is_told_as_that(
    plain_port: str, ask: Callable[[str], Awaitable[object]], subject: str, setting: str
) -> None:
    with pytest.raises(CwmError) as failed:
        await ask(f"localhost:{plain_port}")
    told = failed.value.message
    assert subject in told.partition(" speaks no TLS")[0], told
    assert " speaks no TLS" in told
    assert setting in told


async def test_an_upstream_and_a_token_endpoint_that_speak_no_tls_are_told_as_that(plain_port: str) -> None:
    exchanger, connector = TokenExchanger(), SdkConnector()
    at = TokenExchange(f"https://localhost:{plain_port}/token", "cwm", "hunter2", None, None)
    docs = UpstreamSpec("docs", url=f"https://localhost:{plain_port}/mcp", connect_seconds=10)
    with pytest.raises(UpstreamAwayError, match="its token endpoint speaks no TLS"):
        await exchanger.exchange(at, "Bearer hunter3")
    with pytest.raises(UpstreamAwayError, match="it speaks no TLS"):
        await connector.open(docs)
    await exchanger.aclose()
    await connector.aclose()


async def test_a_database_that_speaks_no_tls_is_told_as_that() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(_SSL_REQUEST_BYTES)
        writer.write(b"N")
        await reader.read()

    async with peer(serve) as address:
        told = await _told_of_the_database(address, "sslmode=require")
    assert told == "The database speaks no TLS. Check CWM_DATABASE_URL."


async def test_a_file_of_certificates_that_holds_none_is_told_as_that(
    port: str, postgres_port: str, tmp_path: Path
) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("none")
    client = connect(f"rediss://localhost:{port}/0?ssl_ca_certs={empty}")
    with pytest.raises(CwmError) as failed:
        await ping(client)
    await client.aclose()
    wrong = "cannot be asked over TLS: a file of certificates or keys cannot be used (no certificate or crl found)"
    assert f"The shared store {wrong}. Check CWM_SHARED_STORE_URL" in failed.value.message
    told = await _told_of_the_database(
        f"127.0.0.1:{postgres_port}", f"sslmode=verify-full&sslrootcert={empty}"
    )
    assert told == f"The database {wrong}. Check CWM_DATABASE_URL."


async def _told_of_the_database(at: str, query: str) -> str:
    database = open_database(database_url(f"postgresql://cwm:hunter2@{at}/cwm?{query}"))
    with pytest.raises(CwmError) as failed:
        await SqlRegistry(database).ping()
    await database.dispose()
    return failed.value.message


@_ASKED
async def test_a_certificate_that_nobody_vouches_for_is_told_with_the_setting_to_check(
    port: str, ask: Callable[[str], Awaitable[object]], subject: str, setting: str
) -> None:
    with pytest.raises(CwmError) as failed:
        await ask(f"localhost:{port}")
    told = failed.value.message
    assert "certificate" in told.partition(_UNKNOWN)[0], told
    assert _UNKNOWN in told
    assert subject in told
    assert setting in told
    assert "hunter2" not in str(failed.value.as_dict())


async def test_a_certificate_of_an_upstream_that_is_not_accepted_is_told_with_the_reason(port: str) -> None:
    async with AsyncExitStack() as closing:
        connector = SdkConnector()
        closing.push_async_callback(connector.aclose)
        with pytest.raises(UpstreamAwayError, match=f"it has a certificate that is not accepted: {_UNKNOWN}"):
            await connector.open(
                UpstreamSpec("docs", url=f"https://localhost:{port}/mcp", connect_seconds=10)
            )


async def test_a_certificate_of_a_token_endpoint_that_is_not_accepted_is_told_with_the_reason(
    port: str,
) -> None:
    exchanger = TokenExchanger()
    at = TokenExchange(f"https://localhost:{port}/token", "cwm", "hunter2", None, None)
    with pytest.raises(UpstreamAwayError, match=_UNKNOWN) as failed:
        await exchanger.exchange(at, "Bearer hunter3")
    await exchanger.aclose()
    assert "hunter" not in str(failed.value)
