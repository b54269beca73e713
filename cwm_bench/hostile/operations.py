"""What a caller may ask of a gateway: every route of the app, every tool and resource that it lists."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fastapi import FastAPI
from fastmcp import Client
from starlette.routing import Route

from cwm.domain.pooling import POOLING_PATHS
from cwm_bench.harness import rpc
from cwm_bench.hostile.engine import MODEL

MCP: Final = "/mcp"
_PART: Final = re.compile(r"\{(\w+)(?::path)?\}")
_USER: Final = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
_SCHEMA: Final = {"type": "object", "properties": {"a": {"type": "string", "enum": ["b"]}}}
_FUNCTION: Final = {"name": "f", "description": "d", "parameters": _SCHEMA}
_MESSAGES: Final = {
    "model": MODEL,
    "system": [{"type": "text", "text": "s"}],
    "messages": [_USER],
    "tools": [{"name": "f", "description": "d", "input_schema": _SCHEMA}],
}
_INPUT: Final = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
_BODIES: Final[Mapping[str, Any]] = {
    "/v1/chat/completions": {
        "model": MODEL,
        "messages": [_USER],
        "max_tokens": 1,
        "tools": [{"type": "function", "function": _FUNCTION}],
        "stop": ["x"],
        "metadata": {"a": "b"},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": _SCHEMA}},
    },
    "/v1/completions": {"model": MODEL, "prompt": "hi", "max_tokens": 1, "logit_bias": {"1": 0}},
    "/v1/messages": {**_MESSAGES, "max_tokens": 1},
    "/v1/messages/count_tokens": _MESSAGES,
    "/v1/responses": {
        "model": MODEL,
        "input": _INPUT,
        "instructions": "s",
        "tools": [{"type": "function", **_FUNCTION}],
        "metadata": {"a": "b"},
    },
    "/v1/conversations": {"items": _INPUT, "metadata": {"a": "b"}},
    "/v1/conversations/{conversation}": {"metadata": {"a": "b"}},
    "/v1/conversations/{conversation}/items": {"items": _INPUT},
    **{path: {"model": MODEL, "input": ["hi"], "documents": ["hi"], "query": "hi"} for path in POOLING_PATHS},
}
"""A body with a value of each kind that the route reads. A route that is new has the last one."""
_OTHER: Final = {"model": MODEL, "input": ["hi"], "a": {"b": "c"}}


@dataclass(frozen=True, slots=True)
class Operation:
    """``seed``: the JSON of its body, None without one. ``names``: what the parts of ``path`` and the arguments named are."""

    name: str
    method: str
    path: str
    seed: Any
    headers: Mapping[str, str]


def routes(app: FastAPI, names: Mapping[str, str]) -> Iterator[Operation]:
    """Each method of each route, with ``names`` in place of the parts of its path."""
    for route in app.routes:
        if not isinstance(route, Route) or (route.path.endswith("/") and len(route.path) > 1):
            continue
        for method in _methods(route):
            path = _PART.sub(lambda part: names.get(part[1], "x"), route.path)
            seed, headers = None, {}
            if method == "POST" and route.path.startswith("/console"):
                headers = {"content-type": "application/x-www-form-urlencoded"}
                seed = {"token": "x", "name": "x"}
            elif method == "POST":
                headers = {"content-type": "application/json"}
                seed = _BODIES.get(route.path, _OTHER)
            yield Operation(f"{method} {route.path}", method, path, seed, headers)


async def tools(client: Client[Any], names: Mapping[str, str]) -> list[Operation]:
    """A call of each tool, and a read of each resource and template."""
    operations = []
    for tool in await client.list_tools():
        properties: dict[str, Any] = tool.input_schema.get("properties", {})
        required = set(tool.input_schema.get("required", ()))
        arguments = {
            name: names.get(name) or _example(schema, tool.input_schema)
            for name, schema in properties.items()
            if name in required or not _is_optional_name(name, names)
        }
        params = {"name": tool.name, "arguments": arguments}
        operations.append(_call(f"tool {tool.name}", "tools/call", params, tool.name))
    uris = [str(resource.uri) for resource in await client.list_resources()]
    uris += [
        re.sub(r"\{\??(\w+)\*?\}", lambda part: names.get(part[1], "x"), template.uri_template)
        for template in await client.list_resource_templates()
    ]
    operations += [_call(f"resource {uri}", "resources/read", {"uri": uri}, uri) for uri in uris]
    for method in ("tools/list", "resources/list", "resources/templates/list", "prompts/list"):
        operations.append(_call(method, method, {}, ""))
    return operations


def _is_optional_name(name: str, names: Mapping[str, str]) -> bool:
    """Of several ways to name a thing the first is tried, so that a call does not contradict itself."""
    return name in names and name != "session_id"


def _call(name: str, method: str, params: dict[str, Any], named: str) -> Operation:
    headers = {**rpc.modern(), "mcp-method": method, "content-type": "application/json"}
    if named:
        headers["mcp-name"] = named
    return Operation(name, "POST", MCP, rpc.request(rpc.MODERN, method, params), headers)


def _methods(route: Route) -> list[str]:
    spelled = getattr(route.endpoint, "methods", None)
    methods = spelled.split(", ") if isinstance(spelled, str) else sorted(route.methods or {"GET"})
    return [method for method in methods if method != "HEAD"]


def _example(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> Any:
    """A short value of the schema's type."""
    if "$ref" in schema:
        schema = whole.get("$defs", {}).get(str(schema["$ref"]).rpartition("/")[2], {})
    schema = schema["anyOf"][0] if "anyOf" in schema else schema
    members: Mapping[str, Any] = schema.get("properties", {"a": {}})
    examples: dict[str, Any] = {
        "integer": schema.get("minimum", 1),
        "number": schema.get("minimum", 1),
        "boolean": False,
        "null": None,
    }
    kind = str(schema.get("type", "string"))
    if "enum" in schema:
        return schema["enum"][0]
    if kind == "array":
        return [_example(schema.get("items", {}), whole)]
    if kind == "object":
        return {name: _example(each, whole) for name, each in members.items()}
    return examples.get(kind, "x")
