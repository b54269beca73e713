"""What nobody should send: JSON and JSON-RPC taken apart, as bytes."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any, Final

from hypothesis import strategies as st

from tests.transport.mcp.wire import MODERN_META, initialize

DEEP: Final = 20_000

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        ["\x00", "\ud800", "../../etc/passwd", "a" * 70_000, "{}", "\u202e", "'; --", "cwm://windows"]
    )
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def called(tool: str, **arguments: Any) -> dict[str, Any]:
    return asked("tools/call", name=tool, arguments=arguments)


def asked(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}


MESSAGES: Final = [
    initialize(),
    asked("ping"),
    asked("tools/list", cursor="x"),
    asked("resources/list"),
    asked("resources/templates/list"),
    asked("resources/read", uri="cwm://windows"),
    asked("resources/read", uri="cwm://context/tenant/a"),
    asked("resources/read", uri="cwm://results/r_0000000000000000000000/0"),
    asked("resources/subscribe", uri="cwm://windows"),
    asked("resources/unsubscribe", uri="cwm://windows"),
    asked("prompts/get", name="x", arguments={"a": "b"}),
    asked("logging/setLevel", level="info"),
    asked(
        "completion/complete",
        ref={"type": "ref/resource", "uri": "cwm://windows"},
        argument={"name": "a", "value": ""},
    ),
    asked("server/discover"),
    asked("nothing/such"),
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7, "reason": "x"}},
    {"jsonrpc": "2.0", "id": 7, "result": {}},
    {"jsonrpc": "2.0", "id": 7, "error": {"code": 1, "message": "x"}},
    called("window_list", tags=["a"], limit=5, search="x", created_after="2026-01-01T00:00:00Z"),
    called("window_status", window_name="w", include_blocks=True),
    called("window_delete", window_name="w", force=True),
    called("window_clone", source_window="w", target_window="v", tags=["a"]),
    called("session_list", state_filter="active", limit=5),
    called("context_set", key="k", value={"a": [1]}, ttl=5, scope="tenant", priority=1),
    called("context_get", key="k", scope="workspace:a", version=1),
    called("context_list", prefix="a", limit=2, scope="tenant"),
    called("result_read", handle="r_0000000000000000000000", page=1),
    called("result_query", handle="r_0000000000000000000000", regex="(a+)+$", jmespath="a[*].b"),
    called("agent_session_end", agent_session="x"),
    called("health_check", component="vllm"),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in it, itself included."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*path, index))


@st.composite
def mutated(draw: st.DrawFn, *, modern: bool) -> Any:
    """A message with up to three things in it replaced, taken out or added."""
    message: Any = copy.deepcopy(draw(st.sampled_from(MESSAGES)))
    if modern and isinstance(message.get("params"), dict):
        message["params"]["_meta"] = dict(MODERN_META)
    for _ in range(draw(st.integers(0, 3))):
        path = draw(st.sampled_from(list(places(message))))
        if not path:
            message = draw(st.one_of(st.just(message), values, st.just([message, message])))
            continue
        inside = message
        for step in path[:-1]:
            inside = inside[step]
        change = draw(st.sampled_from(["replace", "take out", "add"]))
        if change == "take out":
            del inside[path[-1]]
        elif change == "replace" or not isinstance(inside, dict):
            inside[path[-1]] = draw(values)
        else:
            inside[draw(st.text(max_size=8))] = draw(values)
    return message


@st.composite
def bodies(draw: st.DrawFn, *, modern: bool) -> bytes:
    """A mutated message as it goes over the wire, or what is no JSON any more."""
    message = draw(mutated(modern=modern))
    body = json.dumps(message).encode()
    at = draw(st.integers(0, len(body)))
    return draw(
        st.sampled_from(
            [
                body,
                body,
                body,
                body[:at],
                body[:at] + b"\xff\xfe" + body[at:],
                body[:at] + b"\x00" + body[at:],
                json.dumps(message, ensure_ascii=True).encode("utf-16"),
                b"\xef\xbb\xbf" + body,
                twice(body),
                body.replace(b'"params": {', b'"params": {"deep": ' + nested() + b", ", 1),
                body.replace(b'"arguments": {', b'"arguments": {"value": ' + nested() + b", ", 1),
                nested(),
                b'{"a":' * DEEP + b"1" + b"}" * DEEP,
                body.replace(b"7", b"1e999"),
                body.replace(b"7", b"9" * 5_000),
                body + body,
            ]
        )
    )


def nested() -> bytes:
    return b"[" * DEEP + b"]" * DEEP


def twice(body: bytes) -> bytes:
    """Every key of the outermost object two times, the second with another value."""
    return body.removesuffix(b"}") + b', "method": "tools/list", "id": 8, "jsonrpc": "1.0"}'


HEADERS: Final = [
    "accept",
    "content-type",
    "mcp-protocol-version",
    "mcp-session-id",
    "mcp-method",
    "mcp-name",
    "last-event-id",
    "authorization",
    "cwm-session-id",
    "content-encoding",
    "traceparent",
    "expect",
]
HEADER_TEXTS: Final = [
    "x",
    "2025-11-25",
    "2026-07-28",
    "1999-01-01",
    "tools/call",
    "text/html",
    "application/json",
    "*/*",
    "text/event-stream",
    "application/json,text/event-stream",
    "=?base64?//8=?=",
    "%00",
    "é",
]
headers = st.dictionaries(
    st.sampled_from(HEADERS), st.sampled_from([*HEADER_TEXTS, "", "0" * 32, "a" * 9_000]), max_size=3
)
