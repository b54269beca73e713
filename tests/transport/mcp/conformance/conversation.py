"""What the conformance suite asks for by name: calls that report, fail, or ask the client something."""

from __future__ import annotations

from typing import Any, Final

from fastmcp import Context, FastMCP
from mcp import MCPError
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    ClientCapabilities,
    SamplingCapability,
    SamplingMessage,
    TextContent,
)

from cwm.domain.errors import InvalidParameterError
from cwm.transport.mcp.requests.errors import RefusedError

_PERSON: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    },
    "required": ["username", "email"],
}
_DEFAULTS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    },
}
_TITLED: Final = [{"const": "value1", "title": "First"}, {"const": "value2", "title": "Second"}]
_ENUMS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
        "titledSingle": {"type": "string", "oneOf": _TITLED},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["One", "Two"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2"]}},
        "titledMulti": {"type": "array", "items": {"anyOf": _TITLED}},
    },
}


def add_conversation(face: FastMCP[Any]) -> None:
    """Put tools on ``face`` that do more than answer."""
    _add_reports(face)
    _add_questions(face)


def _add_reports(face: FastMCP[Any]) -> None:
    @face.tool(name="test_error_handling")
    def error_handling() -> str:
        """Fails as CWM's own tools do."""
        refused = InvalidParameterError("This tool intentionally returns an error for testing.")
        raise RefusedError(refused)

    @face.tool(name="test_tool_with_progress")
    async def with_progress(ctx: Context) -> str:
        """Tells how far it is."""
        for done in (0, 50, 100):
            await ctx.report_progress(done, 100, f"{done} of 100")
        return "Done."

    @face.tool(name="test_tool_with_logging")
    async def with_logging(ctx: Context) -> str:
        """Logs to the client."""
        for event in ("started", "processing data", "completed"):
            await ctx.session.send_log_message("info", event, related_request_id=ctx.request_id)
        return "Done."

    @face.tool(name="test_logging_tool")
    async def logging_tool(ctx: Context) -> str:
        """Logs to the client that wants it."""
        await ctx.session.send_log_message("error", "an event", related_request_id=ctx.request_id)
        return "Done."

    @face.tool(name="test_missing_capability")
    def missing_capability(ctx: Context) -> str:
        """Needs a client that samples."""
        needed = ClientCapabilities(sampling=SamplingCapability())
        if not ctx.session.check_client_capability(needed):
            required = needed.model_dump(by_alias=True, exclude_none=True)
            raise MCPError(
                MISSING_REQUIRED_CLIENT_CAPABILITY,
                "This tool needs sampling.",
                {"requiredCapabilities": required},
            )
        return "Done."


def _add_questions(face: FastMCP[Any]) -> None:
    """Of the handshake era, where a server may send requests of its own."""

    @face.tool(name="test_sampling")
    async def sampling(prompt: str, ctx: Context) -> str:
        """Has the client's model answer."""
        asked = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
        answer = await ctx.session.create_message([asked], max_tokens=100)
        return f"LLM response: {answer.content}"

    @face.tool(name="test_elicitation")
    async def elicitation(message: str, ctx: Context) -> str:
        """Asks the user."""
        answer = await ctx.session.elicit_form(message, _PERSON)
        return f"User response: {answer.action}, {answer.content}"

    @face.tool(name="test_elicitation_sep1034_defaults")
    async def elicitation_with_defaults(ctx: Context) -> str:
        """Asks the user, with an answer proposed."""
        answer = await ctx.session.elicit_form("Is that right?", _DEFAULTS)
        return f"Elicitation completed: action={answer.action}, content={answer.content}"

    @face.tool(name="test_elicitation_sep1330_enums")
    async def elicitation_with_choices(ctx: Context) -> str:
        """Asks the user to choose."""
        answer = await ctx.session.elicit_form("Which?", _ENUMS)
        return f"Elicitation completed: action={answer.action}, content={answer.content}"
