"""Redis URLs as the adapter's fields."""

from __future__ import annotations

import pytest

from cwm.stack.errors import StackError
from cwm.stack.redis_url import RedisAddress


def test_a_plain_url_names_host_and_the_usual_port() -> None:
    assert RedisAddress.parse("redis://cache.local").adapter() == {
        "startup_nodes": "cache.local:6379",
        "tls_enable": False,
    }


def test_every_part_of_a_url_arrives() -> None:
    address = RedisAddress.parse("rediss://cwm:p%40ss%2Fword@10.0.0.7:6380/3")

    assert address.adapter() == {
        "startup_nodes": "10.0.0.7:6380",
        "tls_enable": True,
        "username": "cwm",
        "password": "p@ss/word",
        "database_id": 3,
    }


@pytest.mark.parametrize(
    "url",
    [
        "redis://cache.local:6379/0",
        "redis://:p%40ss%2Fword@cache.local:6379/2",
        "redis://cwm@cache.local:6379/0",
        "rediss://cwm:p%40ss%2Fword@[::1]:6380/3",
    ],
)
def test_the_url_of_an_address_is_the_one_that_it_was_read_from(url: str) -> None:
    assert RedisAddress.parse(url).url() == url


@pytest.mark.parametrize(
    "url",
    [
        "unix:///run/redis.sock",
        "redis://",
        "redis://user:hunter2@host:port",
        "redis://user:hunter2@host:6379/books",
        "redis://user:hunter2@host:99999",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(StackError) as refused:
        RedisAddress.parse(url)

    assert "hunter2" not in str(refused.value)


def test_the_password_is_in_no_representation() -> None:
    address = RedisAddress.parse("redis://:hunter2@host")

    assert "hunter2" not in repr(address) + str(address)
