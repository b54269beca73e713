"""What the conformance suite asks for by name: content of every kind, resources, prompts, completion."""

from __future__ import annotations

import base64
import io
import json
import wave
from typing import Annotated, Any, Final

from fastmcp import FastMCP
from fastmcp.prompts import Message, PromptResult
from fastmcp.tools import FunctionTool, ToolResult
from mcp_types import AudioContent, EmbeddedResource, ImageContent, TextContent, TextResourceContents
from pydantic import Field

_PIXEL: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
_JSON: Final = "application/json"
_PNG: Final = "image/png"
_SCHEMA_2020_12: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def add_content(face: FastMCP[Any]) -> None:
    """Put tools, resources, prompts and completion on ``face``."""
    _add_tools(face)
    _add_resources(face)
    _add_prompts(face)


def _add_tools(face: FastMCP[Any]) -> None:
    @face.tool(name="test_simple_text")
    def simple_text() -> ToolResult:
        """Text."""
        return ToolResult(content=[_text("This is a simple text response for testing.")])

    @face.tool(name="test_image_content")
    def image_content() -> ToolResult:
        """An image."""
        return ToolResult(content=[_image()])

    @face.tool(name="test_audio_content")
    def audio_content() -> ToolResult:
        """A sound."""
        return ToolResult(content=[AudioContent(type="audio", data=_silence(), mime_type="audio/wav")])

    @face.tool(name="test_embedded_resource")
    def embedded_resource() -> ToolResult:
        """A resource that comes with the answer."""
        told = "This is an embedded resource content."
        return ToolResult(content=[_embedded("test://embedded-resource", "text/plain", told)])

    @face.tool(name="test_multiple_content_types")
    def multiple_content_types() -> ToolResult:
        """Text, an image and a resource."""
        told = json.dumps({"test": "data", "value": 123})
        return ToolResult(
            content=[
                _text("Multiple content types test:"),
                _image(),
                _embedded("test://mixed-content-resource", _JSON, told),
            ]
        )

    @face.tool(name="test_custom_headers")
    def custom_headers(
        region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})],
    ) -> str:
        """A field that clients repeat in a header."""
        return region

    def schema_2020_12(**fields: Any) -> str:
        return json.dumps(fields)

    face.add_tool(
        FunctionTool(
            name="json_schema_2020_12_tool",
            description="A schema with more in it than most.",
            fn=schema_2020_12,
            parameters=_SCHEMA_2020_12,
        )
    )


def _add_resources(face: FastMCP[Any]) -> None:
    @face.resource("test://static-text", mime_type="text/plain")
    def static_text() -> str:
        """Text that never changes."""
        return "This is the content of the static text resource."

    @face.resource("test://static-binary", mime_type=_PNG)
    def static_binary() -> bytes:
        """An image that never changes."""
        return base64.b64decode(_PIXEL)

    @face.resource("test://watched-resource", mime_type="text/plain")
    def watched() -> str:
        """What clients subscribe to."""
        return "Watched resource content"

    @face.resource("test://template/{id}/data", mime_type=_JSON)
    def template(id: str) -> str:  # noqa: A002 - the suite's own name
        """Data for any id."""
        return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


def _add_prompts(face: FastMCP[Any]) -> None:
    @face.prompt(name="test_simple_prompt")
    def simple() -> str:
        """A prompt that takes nothing."""
        return "This is a simple prompt for testing."

    @face.prompt(name="test_prompt_with_arguments")
    def with_arguments(arg1: str, arg2: str) -> str:
        """A prompt that repeats what it is given."""
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    @face.prompt(name="test_prompt_with_embedded_resource")
    def with_resource(resourceUri: str) -> PromptResult:  # noqa: N803 - the suite's own name
        """A prompt with a resource in it."""
        told = _embedded(resourceUri, "text/plain", "Embedded resource content for testing.")
        return PromptResult([Message(told), Message("Please process the embedded resource above.")])

    @face.prompt(name="test_prompt_with_image")
    def with_image() -> PromptResult:
        """A prompt with an image in it."""
        return PromptResult([Message(_image()), Message("Please analyze the image above.")])

    @face.completion
    def complete(_reference: Any, argument: Any, _context: Any) -> list[str]:
        known = ["paris", "park", "party"]
        return [value for value in known if value.startswith(argument.value)]


def _text(text: str) -> TextContent:
    return TextContent(type="text", text=text)


def _image() -> ImageContent:
    return ImageContent(type="image", data=_PIXEL, mime_type=_PNG)


def _embedded(uri: str, mime_type: str, text: str) -> EmbeddedResource:
    contents = TextResourceContents(uri=uri, mime_type=mime_type, text=text)
    return EmbeddedResource(type="resource", resource=contents)


def _silence() -> str:
    written = io.BytesIO()
    with wave.open(written, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(1)
        sound.setframerate(8000)
        sound.writeframes(b"\x80")
    return base64.b64encode(written.getvalue()).decode()
