"""The SDK's transport for streamable HTTP, except that each response ends the wait of the request that it answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import mcp_types as types
import structlog
from mcp.client.streamable_http import StreamableHTTPTransport, StreamWriter
from mcp.shared._context_streams import create_context_streams
from mcp.shared.message import SessionMessage

from cwm.adapters.upstream.messages import answer_to, read, unreadable

_log = structlog.get_logger("cwm.upstream")


@asynccontextmanager
async def exchanging(url: str, client: httpx2.AsyncClient, most: int) -> AsyncIterator[tuple[Any, Any]]:
    """The streams of a session at ``url``; an event has at most ``most`` bytes. As the SDK's function for it."""
    transport = _Transport(url, max_sse_event_size=most)
    incoming, read_stream = create_context_streams[SessionMessage | Exception](0)
    write_stream, outgoing = create_context_streams[SessionMessage](0)
    async with incoming, read_stream, write_stream, outgoing, anyio.create_task_group() as tasks:

        def start_get_stream() -> None:
            tasks.start_soon(transport.handle_get_stream, client, incoming)

        tasks.start_soon(
            transport.post_writer, client, outgoing, incoming, write_stream, start_get_stream, tasks
        )
        try:
            yield read_stream, write_stream
        finally:
            tasks.cancel_scope.cancel()


class _Transport(StreamableHTTPTransport):
    async def _handle_json_response(
        self, response: httpx2.Response, read_stream_writer: StreamWriter, *, request_id: types.RequestId
    ) -> None:
        for message in answer_to(request_id, response.content):
            await read_stream_writer.send(SessionMessage(message))

    async def _handle_sse_event(
        self,
        sse: httpx2.ServerSentEvent,
        read_stream_writer: StreamWriter,
        original_request_id: types.RequestId | None = None,
        resumption_callback: Any = None,  # noqa: ARG002 - CWM uses none
    ) -> bool:
        """Whether the event answered the request."""
        if sse.event != "message" or not sse.data:
            return False
        try:
            messages = read(sse.data.encode())
        except ValueError:
            if original_request_id is None or '"method"' in sse.data:
                _log.info("upstream_event_skipped", bytes=len(sse.data))
                return False
            messages = [unreadable(original_request_id, "is not MCP")]
        answered = False
        for message in messages:
            if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
                answered = True
                if original_request_id is not None:
                    message.id = original_request_id
            await read_stream_writer.send(SessionMessage(message))
        return answered
