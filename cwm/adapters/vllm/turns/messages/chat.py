"""Anthropic's messages and tools as those of a chat, in the order in which vLLM's own conversion puts them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cwm.adapters.vllm.turns.body import objects
from cwm.domain.clients.claude_code import BILLING_HEADER
from cwm.domain.errors import InvalidParameterError


def chat_messages(system: Any, messages: Any) -> list[dict[str, Any]]:
    """What vLLM renders, but for templates that take a system message only at the beginning: vLLM then moves the others there.

    CWM-1003 for a tool call that is nested too deeply.
    """
    text = system if isinstance(system, str) else _system_text(system)
    chat = [{"role": "system", "content": text}] if text else []
    for message in objects(messages):
        chat += chat_message(message)
    return chat


def chat_message(message: dict[str, Any]) -> list[dict[str, Any]]:
    """A message, with the results of tools in front of it; only those, if a user says nothing else."""
    role, content = message.get("role"), message.get("content")
    if role == "system":
        text = _system_text([{"type": "text", "text": content}] if isinstance(content, str) else content)
        return [{"role": role, "content": text}] if text else []
    if not isinstance(content, list):
        return [{"role": role, "content": content}]
    blocks = objects(content)
    results = [result for block in blocks for result in _results(block, role)]
    parts = [part for block in blocks for part in _parts(block, role)]
    calls = [_call(block) for block in blocks if block.get("type") == "tool_use"]
    thoughts = [block.get("thinking") for block in blocks if block.get("type") == "thinking"]
    chat_fields: dict[str, Any] = {"role": role}
    if reasoning := "".join(thought for thought in thoughts if isinstance(thought, str)):
        chat_fields["reasoning"] = reasoning
    if calls:
        chat_fields["tool_calls"] = calls
    if parts:
        alone = len(parts) == 1 and parts[0]["type"] == "text"
        chat_fields["content"] = parts[0]["text"] if alone else parts
    return results if role == "user" and not parts else [*results, chat_fields]


def chat_tools(tools: Any) -> list[dict[str, Any]] | None:
    """The definitions of a chat's tools; None without a list of them."""
    if not isinstance(tools, list):
        return None
    return [{"type": "function", "function": _function(tool)} for tool in objects(tools)]


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    schema = tool.get("input_schema")
    if isinstance(schema, dict) and "type" not in schema:
        schema = {**schema, "type": "object"}
    fields = {"name": tool.get("name"), "description": tool.get("description"), "parameters": schema}
    fields |= {name: tool.get(name) for name in ("strict", "defer_loading")}
    return {name: value for name, value in fields.items() if value is not None}


def _system_text(content: Any) -> str:
    """VLLM leaves out Claude Code's first block."""
    texts = (block.get("text") for block in objects(content) if block.get("type") == "text")
    return "".join(text for text in texts if isinstance(text, str) and not text.startswith(BILLING_HEADER))


def _parts(block: dict[str, Any], role: Any) -> Iterator[dict[str, Any]]:
    kind = block.get("type")
    if kind == "text" and (text := block.get("text")):
        yield {"type": "text", "text": text}
    elif kind == "image" and isinstance(source := block.get("source"), dict):
        yield _image(source)
    elif kind == "tool_result" and role != "user":
        yield {"type": "text", "text": f"Tool result: {block.get('content') or ''}"}


def _image(source: dict[str, Any]) -> dict[str, Any]:
    if source.get("type") == "url":
        url = source.get("url", "")
    else:
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _call(block: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a streamed call are text, as they came."""
    value = block.get("input")
    try:
        arguments = value if isinstance(value, str) else json.dumps(value or {}, ensure_ascii=False)
    except RecursionError as error:
        raise InvalidParameterError("A tool call is nested too deeply.", field="messages") from error
    function = {"name": block.get("name") or "", "arguments": arguments}
    return {"id": block.get("id") or "", "type": "function", "function": function}


def _results(block: dict[str, Any], role: Any) -> list[dict[str, Any]]:
    """The text of a tool's result, its images as a user's message, and the tools that it names; nothing for other blocks."""
    if role != "user" or block.get("type") != "tool_result":
        return []
    call, content = {"tool_call_id": block.get("tool_use_id") or ""}, block.get("content")
    items = objects(content)
    texts = [str(item.get("text", "")) for item in items if item.get("type") == "text"]
    text = content if isinstance(content, str) else "\n".join(texts)
    messages: list[dict[str, Any]] = [{"role": "tool", **call, "content": text}]
    sources = (item.get("source") for item in items if item.get("type") == "image")
    if images := [_image(source) for source in sources if isinstance(source, dict)]:
        messages.append({"role": "user", "content": images})
    names = [
        item.get("tool_name") or item.get("name") for item in items if item.get("type") == "tool_reference"
    ]
    if references := [{"type": "tool_reference", "name": name} for name in names if name]:
        messages.append({"role": "tool", **call, "content": references})
    return messages
