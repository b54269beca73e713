"""Headers as a careless client may spell them."""

from __future__ import annotations

import asyncio
import json

from tests.transport.mcp.gateway import Gateway

CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {
        "name": "session_list",
        "arguments": {},
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    },
}


async def test_whitespace_around_a_header_value_is_no_part_of_it(gateway: Gateway) -> None:
    body = json.dumps(CALL).encode()
    address = gateway.url.removeprefix("http://")
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
        "Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28 \r\n"
        "Mcp-Method:\t tools/call \r\nMcp-Name:   session_list \t\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    # httpx2 would not send such headers.
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"isError":false' in answer.replace(b" ", b"")
