"""Turns functions into published tools, and runs them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

from fastmcp.exceptions import FastMCPError, ToolError
from fastmcp.server.middleware import Middleware
from fastmcp.tools import FunctionTool, ToolResult
from mcp_types import ToolAnnotations

from cwm.domain.showable import shown
from cwm.transport.mcp.contract.examples import EXAMPLES
from cwm.transport.mcp.contract.published import input_schema, output_schema
from cwm.transport.mcp.requests.agent import CallContext, NextCall
from cwm.transport.mcp.requests.call import tool_call
from cwm.transport.mcp.requests.errors import RefusedError, coded

_MOST_UNKNOWN: Final = 5


class CodedTool(FunctionTool):
    """A tool that accepts null for optional fields and reports failures with an error code."""

    async def run(self, arguments: dict[str, Any]) -> ToolResult:
        try:
            return await super().run(self._without_nulls(self._with_few_unknown(arguments)))
        except FastMCPError:
            raise
        except Exception as failed:
            raise RefusedError(coded(failed)) from failed

    def convert_result(self, raw_value: Any) -> ToolResult:
        """The answer, with escapes where it holds what MCP cannot carry: an answer of an engine, or what was recorded long ago."""
        try:
            return super().convert_result(raw_value)
        except (ToolError, ValueError, RecursionError):
            return super().convert_result(shown(raw_value))

    def _with_few_unknown(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Without most of the names that are no fields: each would be an error of its own."""
        fields = self.parameters["properties"]
        if len(arguments) <= len(fields) + _MOST_UNKNOWN:
            return arguments
        unknown = islice((name for name in arguments if name not in fields), _MOST_UNKNOWN)
        names = {*unknown, *fields}
        return {name: value for name, value in arguments.items() if name in names}

    def _without_nulls(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Drop optional fields that are null: the schema has no null, but clients that fill in every field send it."""
        fields = self.parameters["properties"]
        optional = fields.keys() - set(self.parameters.get("required", ()))
        return {
            name: whole(value) if fields.get(name, {}).get("type") == "integer" else value
            for name, value in arguments.items()
            if value is not None or name not in optional
        }


# Bypass (decision 0028): CWM's own tools by name, without FastMCP's providers and transforms.
class OwnTools(Middleware):
    """The innermost layer: runs the tool of the record.

    FastMCP would search for it through providers, transforms and visibility rules, none of which CWM uses.
    """

    async def on_call_tool(self, context: CallContext, call_next: NextCall) -> ToolResult:
        tool = tool_call().own
        return await (call_next(context) if tool is None else tool.run(context.message.arguments or {}))


def whole(value: Any) -> Any:
    """``value`` as an integer if it is a whole float: JSON Schema counts 20.0 as one, and some clients send only floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def tool(
    function: Callable[..., Any],
    title: str,
    output: Any,
    *,
    read_only: bool = False,
    destructive: bool = False,
    idempotent: bool = False,
) -> FunctionTool:
    """Publish ``function`` under its own name, with its docstring as description and ``output`` as result type.

    Its example is in ``EXAMPLES``; a benchmark's tool has none.
    """
    example = EXAMPLES.get(function.__name__)
    with _documented_by_us(function) as description:
        function_tool = CodedTool.from_function(
            function,
            title=title,
            description=description,
            output_schema={**output_schema(output), **({"examples": [example.answer]} if example else {})},
            annotations=ToolAnnotations(
                title=title,
                read_only_hint=read_only,
                destructive_hint=destructive,
                idempotent_hint=idempotent or read_only,
                open_world_hint=False,
            ),
        )
    function_tool.parameters = input_schema(function_tool.parameters)
    if example:
        function_tool.parameters["examples"] = [example.arguments]
    return function_tool


@contextmanager
def _documented_by_us(function: Callable[..., Any]) -> Iterator[str | None]:
    """Hide the docstring from FastMCP, which would load three parsers to look for parameters that it does not have."""
    docstring, description = function.__doc__, inspect.getdoc(function)
    function.__doc__ = None
    try:
        yield description
    finally:
        function.__doc__ = docstring
