"""Combines CWM's layers around calls and lists into one FastMCP middleware: FastMCP is slow with several."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from fastmcp.resources import Resource, ResourceResult, ResourceTemplate
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.tools import Tool, ToolResult


# Bypass (decision 0028): FastMCP makes six calls for each of its middlewares, of which CWM needs one.
class Layers(Middleware):
    """Runs ``layers``, the outermost first. It calls only their hooks for tools and resources."""

    def __init__(self, *layers: Middleware) -> None:
        self._from_inside = layers[::-1]

    async def on_call_tool(
        self, context: MiddlewareContext[Any], call_next: CallNext[Any, ToolResult]
    ) -> ToolResult:
        for layer in self._from_inside:
            call_next = partial(layer.on_call_tool, call_next=call_next)
        return await call_next(context)

    async def on_read_resource(
        self, context: MiddlewareContext[Any], call_next: CallNext[Any, ResourceResult]
    ) -> ResourceResult:
        for layer in self._from_inside:
            call_next = partial(layer.on_read_resource, call_next=call_next)
        return await call_next(context)

    async def on_list_tools(
        self, context: MiddlewareContext[Any], call_next: CallNext[Any, Sequence[Tool]]
    ) -> Sequence[Tool]:
        for layer in self._from_inside:
            call_next = partial(layer.on_list_tools, call_next=call_next)
        return await call_next(context)

    async def on_list_resources(
        self, context: MiddlewareContext[Any], call_next: CallNext[Any, Sequence[Resource]]
    ) -> Sequence[Resource]:
        for layer in self._from_inside:
            call_next = partial(layer.on_list_resources, call_next=call_next)
        return await call_next(context)

    async def on_list_resource_templates(
        self, context: MiddlewareContext[Any], call_next: CallNext[Any, Sequence[ResourceTemplate]]
    ) -> Sequence[ResourceTemplate]:
        for layer in self._from_inside:
            call_next = partial(layer.on_list_resource_templates, call_next=call_next)
        return await call_next(context)
