"""Combines CWM's layers around calls and lists into one FastMCP middleware: FastMCP is slow with several."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext


def _through(hook: str) -> Any:
    """The hook that runs this hook of every layer."""

    async def run(layers: Layers, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        for layer in layers.from_inside:
            call_next = partial(getattr(layer, hook), call_next=call_next)
        return await call_next(context)

    return run


# Bypass (decision 0028): FastMCP makes six calls for each of its middlewares, of which CWM needs one.
class Layers(Middleware):
    """Runs ``layers``, the outermost first. It calls only their hooks for tools and resources."""

    def __init__(self, *layers: Middleware) -> None:
        self.from_inside = layers[::-1]

    on_call_tool = _through("on_call_tool")
    on_read_resource = _through("on_read_resource")
    on_list_tools = _through("on_list_tools")
    on_list_resources = _through("on_list_resources")
    on_list_resource_templates = _through("on_list_resource_templates")
