"""URLs as settings: one that no driver could read is refused in words of our own, which never repeat it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from urllib.parse import quote

import certifi
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.engine import make_url

from cwm.adapters.redis.connection import connect
from cwm.adapters.sql import schema
from cwm.adapters.sql.database import open_database
from cwm.adapters.sql.failures import coded_errors
from cwm.domain.errors import CwmError, StorageReadError, StorageWriteError
from cwm.settings import SettingsError, load

DATABASE, STORE, TIER = "CWM_DATABASE_URL", "CWM_SHARED_STORE_URL", "CWM_REDIS_URL"
ENGINE, TRACES, ISSUER = "CWM_VLLM_URL", "CWM_OTLP_ENDPOINT", "CWM_OAUTH_JWKS_URL"


@pytest.mark.parametrize(
    ("variable", "url", "said"),
    [
        (DATABASE, "postgresql://cwm:pa@ss:Zq8@db/cwm", "percent-encode special characters in its user and"),
        (DATABASE, "postgresql://cwm:pa/ss:Zq8@db/cwm", "percent-encode special characters in its user and"),
        (DATABASE, "postgresql://cwm:12/ss:Zq8@db/cwm", "percent-encode special characters in its user and"),
        (DATABASE, "postgresql://cwm:pa#ss:Zq8@db/cwm", "percent-encode special characters in its user and"),
        (DATABASE, "postgresql://cwm:pa[ss:Zq8@db/cwm", "percent-encode special characters in its user and"),
        (DATABASE, "postgresql://db:Zq8/cwm", "is not a URL: its host or port cannot be read."),
        (DATABASE, "passwordZq8", "must be a URL such as postgresql://user:password@host/db."),
        (DATABASE, "mysql://cwm:Zq8@db/cwm", "has the scheme 'mysql'; use postgresql:// or leave it unset"),
        (DATABASE, "postgresql://db/cwm?channel_binding=Zq8", "has the parameter 'channel_binding', which "),
        (DATABASE, "postgresql://db/cwm?pa%26Zq8=1", "has a parameter, which the driver asyncpg does not "),
        (DATABASE, "postgresql://db/cwm?sslmode=Zq8", "must have one of disable, allow, prefer, require, "),
        (
            DATABASE,
            "postgresql://db/cwm?port=Zq8",
            "has an invalid value of the parameter 'port'.",
        ),
        (STORE, "redis://:hun/ter2Zq8@127.0.0.1:9", "percent-encode special characters in its user and pass"),
        (STORE, "redis://h:Zq8", "is not a URL: its host or port cannot be read."),
        (STORE, "foo://h:9/Zq8", "must be a redis://, rediss://, valkey://, valkeys:// or unix:// URL."),
        (
            STORE,
            "redis://h:9?bogus=Zq8",
            "has the parameter 'bogus', which CWM does not accept; leave it out.",
        ),
        (STORE, "redis://h:9?db=Zq8", "has an invalid value of the parameter 'db'."),
        (STORE, "redis://h:9/Zq8", "must end in host:port or host:port/database, both numbers."),
        (
            STORE,
            "redis://h:9?ssl_cert_reqs=Zq8",
            "has the parameter 'ssl_cert_reqs', which CWM does not accept",
        ),
        (
            TIER,
            "redis://:hun/ter2Zq8@127.0.0.1:9",
            "percent-encode special characters in its user and password",
        ),
        (ENGINE, "http://[::1Zq8", "is not a URL: its host or port cannot be read."),
        (ENGINE, "http://h:Zq8", "is not a URL: its host or port cannot be read."),
        (ENGINE, "http:///Zq8", "must be an http:// or https:// URL."),
        (ENGINE, "http://h/ Zq8", "must not contain spaces or control characters."),
        (TRACES, "http://[::1Zq8", "is not a URL: its host or port cannot be read."),
        (TRACES, "http://h:Zq8", "is not a URL: its host or port cannot be read."),
        (ISSUER, "http://[::1Zq8", "is not a URL: its host or port cannot be read."),
        (ISSUER, "https://h:Zq8", "is not a URL: its host or port cannot be read."),
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_repeating_it(
    variable: str, url: str, said: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        load({variable: url})
    assert str(refused.value).startswith(f"{variable}: ")
    assert said in str(refused.value)
    assert "Zq8" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


URLS = st.lists(
    st.sampled_from([*"[]:/?#@%&=,.-_ a1\tö", "://", "::1", "db", "%40", "?port=", "&host=", "sslmode="])
).map("".join)


@given(URLS)
def test_whatever_is_not_refused_is_read_by_the_driver(rest: str) -> None:
    for variable, scheme in ((DATABASE, "postgresql://"), (STORE, "redis://"), (ENGINE, "http://")):
        try:
            settings = load({variable: scheme + rest})
        except SettingsError:
            continue
        if variable == DATABASE:
            open_database(settings.database.url())
        elif variable == STORE:
            connect(str(settings.shared_store_url())).connection_pool.make_connection()  # type: ignore[no-untyped-call]
        else:
            httpx2.URL(settings.engine.vllm_url)


@pytest.mark.parametrize(
    "query",
    [
        "client_name=cwm&db=3&health_check_interval=5&max_connections=9&protocol=3",
        "socket_connect_timeout=1.5&socket_timeout=2&socket_keepalive=true",
        "ssl_ca_certs=/a&ssl_ca_path=/b&ssl_cert_reqs=required&ssl_certfile=/c&ssl_check_hostname=no&ssl_keyfile=/d",
    ],
)
def test_each_parameter_that_is_taken_is_one_that_the_client_of_redis_knows(query: str) -> None:
    url = load({STORE: f"rediss://h:9?{query}"}).shared_store_url()
    connect(str(url)).connection_pool.make_connection()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", ["a b.db", "what?.db", "no#1.db", "50%25.db", "über.db", "a&b=c.db"])
async def test_a_database_is_the_file_that_was_named(tmp_path: Path, name: str) -> None:
    url = load({"CWM_DB_PATH": str(tmp_path / name)}).database.url()
    await schema.upgrade(url)
    made = await asyncio.to_thread(os.listdir, tmp_path)
    assert name in made
    assert all(each.startswith(name) for each in made)


async def test_a_folder_in_place_of_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageWriteError, match=f"{tmp_path} cannot be created or opened: Is a directory"):
        open_database(load({"CWM_DB_PATH": str(tmp_path)}).database.url())


async def asked(url: str) -> int:
    database = open_database(load({DATABASE: url}).database.url())
    try:
        with coded_errors(StorageReadError):
            return int(
                await database.read(lambda connection: connection.execute(text("SELECT 1")).scalar_one())
            )
    finally:
        await database.dispose()


@pytest.mark.parametrize("query", ["sslmode=disable", "sslmode=allow", "ssl=prefer", "sslmode=prefer"])
async def test_a_database_without_tls_is_reached_where_its_url_allows_that(
    postgres_server: str, query: str
) -> None:
    url = postgres_server.replace("+asyncpg", "")
    assert await asked(f"{url}/postgres?{query}&target_session_attrs=any") == 1


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
async def test_a_database_without_tls_is_refused_where_its_url_requires_that(
    postgres_server: str, mode: str
) -> None:
    root = quote(certifi.where(), safe="")
    with pytest.raises(CwmError):
        await asked(f"{postgres_server}/postgres?sslmode={mode}&sslrootcert={root}")


def test_a_root_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="sslrootcert that does not exist"):
        load({DATABASE: f"postgresql://h/d?sslmode=verify-full&sslrootcert={tmp_path}/none.pem"})


def test_what_stands_in_the_url_of_a_database_stays_in_it() -> None:
    url = make_url(load({DATABASE: "postgres://u%40x:p%2Fw@h:1/d?sslmode=require"}).database.url())
    assert (url.drivername, url.username, url.password) == ("postgresql+asyncpg", "u@x", "p/w")
    assert (url.host, url.port, url.database) == ("h", 1, "d")
    assert url.query == {"dsn": "postgresql://?sslmode=require"}
