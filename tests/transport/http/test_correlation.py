"""The id that the lines of log of one HTTP request share."""

from __future__ import annotations

import re
from typing import Any

import pytest
from structlog.contextvars import get_contextvars

from cwm.ports.tracing import UNTRACED, named
from cwm.transport.http.correlation import ARRIVAL, Correlated


async def bound(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert ARRIVAL not in scope
        seen.update(get_contextvars())

    async def nothing(*_: Any) -> Any: ...

    scope = {"type": "http", "path": "/mcp", "method": "POST", "headers": list(headers)}
    await Correlated(app, UNTRACED, "/mcp")(scope, nothing, nothing)
    assert "request_id" not in get_contextvars()
    return seen


async def test_a_request_keeps_the_id_that_a_proxy_gave_it() -> None:
    assert (await bound((b"x-request-id", b"req-17.a")))["request_id"] == "req-17.a"


@pytest.mark.parametrize("given", [b"", b"a" * 65, b"two words", b"\xff", b'{"json": 1}', b"a\nb"])
async def test_what_is_no_id_is_replaced(given: bytes) -> None:
    told = (await bound((b"x-request-id", given)))["request_id"]
    assert re.fullmatch("[0-9a-f]{16}", told)


async def test_each_request_has_an_id_of_its_own() -> None:
    assert (await bound())["request_id"] != (await bound())["request_id"]


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ("window_list", "window_list"),
        ("org/model:7b", "org/model:7b"),
        ("a b", None),
        ("a" * 129, None),
        (3, None),
    ],
)
def test_only_what_looks_like_a_name_is_told_as_one(chosen: object, told: str | None) -> None:
    assert named(chosen) == told
