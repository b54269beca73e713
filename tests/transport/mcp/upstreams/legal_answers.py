"""What MCP allows an upstream to answer and a client to send, as a list of cases."""

from __future__ import annotations

from typing import Any, Final

TEXT: Final = {"type": "text", "text": "x"}
ANY: Final = {"type": "object"}
OWN_URI: Final = "file:///a"

RESULTS: Final[dict[str, dict[str, Any]]] = {
    "structured content alone": {"structuredContent": {"a": 1}},
    "structured content and no item": {"content": [], "structuredContent": {"a": 1}},
    "an empty object": {"content": [TEXT], "structuredContent": {}},
    "empty values": {"content": [TEXT], "structuredContent": {"a": None, "b": [], "c": {}, "d": ""}},
    "numbers": {
        "content": [TEXT],
        "structuredContent": {"a": 1.0, "b": 1.1, "c": 2**70, "d": -0.0, "e": 1e21},
    },
    "nothing": {"content": []},
    "an error": {"content": [TEXT], "isError": True},
    "an error with structured content": {"content": [TEXT], "isError": True, "structuredContent": {"a": 1}},
    "many items": {"content": [TEXT] * 300},
    "an empty text": {
        "content": [{**TEXT, "text": "", "annotations": {"audience": []}, "_meta": {"k": "v"}}]
    },
    "odd characters": {"content": [{**TEXT, "text": "\u2028\u2029\x00\x1b\ufeff\U0001f600"}]},
    "an image": {
        "content": [
            {
                "type": "image",
                "data": "aGk=",
                "mimeType": "image/png",
                "annotations": {
                    "audience": ["user", "assistant"],
                    "priority": 0.5,
                    "lastModified": "2025-01-12T15:00:58Z",
                },
                "_meta": {"a": 1},
            }
        ]
    },
    "audio": {"content": [{"type": "audio", "data": "", "mimeType": "audio/wav"}]},
    "a link": {
        "content": [
            {
                "type": "resource_link",
                "uri": OWN_URI,
                "name": "a",
                "title": "A",
                "description": "",
                "mimeType": "text/x",
                "size": 0,
                "annotations": {"priority": 1.0},
                "icons": [
                    {
                        "src": "https://e.example/i.png",
                        "mimeType": "image/png",
                        "sizes": ["48x48"],
                        "theme": "dark",
                    }
                ],
                "_meta": {"x": {"y": [1]}},
            }
        ]
    },
    "a link to the web": {"content": [{"type": "resource_link", "uri": "https://e.example/a", "name": "a"}]},
    "an embedded text": {
        "content": [
            {
                "type": "resource",
                "resource": {"uri": OWN_URI, "mimeType": "a/b", "text": "", "_meta": {"q": 1}},
                "annotations": {"priority": 0.0},
            }
        ]
    },
    "an embedded blob": {"content": [{"type": "resource", "resource": {"uri": OWN_URI, "blob": "aGk="}}]},
    "metadata": {
        "content": [TEXT],
        "_meta": {"com.example/a": [1, {}], "io.modelcontextprotocol/related-task": {"taskId": "t"}},
    },
}

VALUES: Final[tuple[Any, ...]] = ([1, {"a": None}], [], "s", "", 1.5, 0, True, False, {"a": 1})
"""Structured content since 2026-07-28: any JSON value."""

PROMPTS: Final[dict[str, dict[str, Any]]] = {
    "a text": {"messages": [{"role": "user", "content": TEXT}]},
    "nothing": {"messages": []},
    "media": {
        "description": "",
        "messages": [
            {"role": "assistant", "content": {"type": "image", "data": "aGk=", "mimeType": "image/png"}},
            {"role": "user", "content": {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}},
        ],
        "_meta": {"a": 1},
    },
    "resources": {
        "messages": [
            {"role": "user", "content": {"type": "resource", "resource": {"uri": OWN_URI, "text": "t"}}},
            {"role": "user", "content": {"type": "resource_link", "uri": OWN_URI, "name": "n"}},
        ]
    },
}

READS: Final[dict[str, dict[str, Any]]] = {
    "an empty text": {"contents": [{"uri": OWN_URI, "text": ""}]},
    "nothing": {"contents": []},
    "several": {
        "contents": [
            {"uri": OWN_URI, "blob": "aGk=", "mimeType": "image/png", "_meta": {"a": 1}},
            {"uri": f"{OWN_URI}/b", "text": "b", "mimeType": "text/html;profile=mcp-app"},
        ],
        "_meta": {"z": 1},
    },
}

COMPLETIONS: Final[dict[str, dict[str, Any]]] = {
    "none": {"completion": {"values": []}},
    "all": {"completion": {"values": ["a", ""], "total": 0, "hasMore": False}},
    "the most": {
        "completion": {"values": [str(each) for each in range(100)], "total": 1000, "hasMore": True}
    },
}

TOOLS: Final[list[dict[str, Any]]] = [
    {"name": "go", "inputSchema": ANY},
    {
        "name": "full",
        "title": "Full",
        "description": "",
        "inputSchema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/A"}, "agent_session": {"type": ["string", "integer"]}},
            "$defs": {"A": {"type": ["string", "null"], "default": None}},
            "required": ["a"],
            "additionalProperties": False,
        },
        "outputSchema": {"type": "object", "properties": {"x": {"type": "number"}}},
        "annotations": {
            "title": "F",
            "readOnlyHint": False,
            "destructiveHint": False,
            "idempotentHint": True,
            "openWorldHint": False,
        },
        "icons": [{"src": "data:image/png;base64,aGk="}],
        "_meta": {"a": {"b": [1]}},
    },
    {
        "name": "any",
        "inputSchema": {
            **ANY,
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
            "properties": {"a": True, "b": {}},
        },
    },
    {"name": "n" * 100, "inputSchema": {**ANY, "properties": {}, "x-vendor": 1}},
    {"name": "A.b-c_9/d e:f", "inputSchema": ANY},
    {
        "name": "nested",
        "inputSchema": {**ANY, "allOf": [{"properties": {"agent_session": {"type": "string"}}}]},
    },
]

ARGUMENTS: Final[list[dict[str, Any]]] = [
    {},
    {"agent_session": 5},
    {"session_id": "s", "workspace": "w", "max_tokens": -1, "cursor": "c", "tool": "t", "handle": "h"},
    {"name": "n", "arguments": {"a": 1}, "_meta": {"progressToken": 1}, "task": {"ttl": 1}},
    {"self": 1, "context": 2, "ctx": 3, "call": 4, "request": 6, "": 7, "__proto__": 8},
    {"a": {"$ref": "x"}, "$result": "y"},
    {"n": 1.0, "m": 1.1, "big": 2**70, "e": 1e21, "none": None, "list": [], "map": {}},
    {"ü": "\u2028\u0000"},
]

URIS: Final = (
    *(OWN_URI, "file:///a%20b", "file:///a//b/", "file:///C:/x", "x:", "x:y", "x:/abs", "x://", "x:////q"),
    *(
        "urn:isbn:123",
        "mailto:a@b.example",
        "HTTP://E.example/A",
        "https://u:p@e.example:80/?q=1#f",
        "http://[::1]/x",
    ),
    *("custom+a.b-c://h", "git://h/p?x=a/b", "db://t/{id}", "notes", "a/b", "a/b:c", "s3://b/k?v=1"),
)

TEMPLATES: Final = {
    "file:///{path}": ("file://up//{path}", "file:///p", "file://up//p"),
    "file:///{+path}": ("file://up//{+path}", "file:///p/q", "file://up//p/q"),
    "x:{y}": ("x:up/{y}", "x:z", "x:up/z"),
    "{scheme}://h/{p}": ("{scheme}://up/h/{p}", "git://h/p", "git://up/h/p"),
    "{+uri}": ("up/{+uri}", "git://h/p", "up/git://h/p"),
    "{x}": ("up/{x}", "notes", "up/notes"),
    "a{/b,c}": ("up/a{/b,c}", "a/1/2", "up/a/1/2"),
    "db://{t}/{id}{?q,r*}{&z}": (
        "db://up/{t}/{id}{?q,r*}{&z}",
        "db://t/1?q=2&r=3&z=4",
        "db://up/t/1?q=2&r=3&z=4",
    ),
    "n://{#f}": ("n://up/{#f}", "n://#f", "n://up/#f"),
    "x://{a:3}/{b*}{.ext}{;p}": ("x://up/{a:3}/{b*}{.ext}{;p}", "x://abc/d.e;p=1", "x://up/abc/d.e;p=1"),
    "plain://no/expression": (
        "plain://up/no/expression",
        "plain://no/expression",
        "plain://up/no/expression",
    ),
}
"""Templates, as the gateway lists them, and what they expand to at the upstream and at the gateway."""

IDS: Final[tuple[int | str, ...]] = (0, -1, 2**53, 2**63, "", "0", "a b", "ü" * 50)
