"""One request through each face of a gateway, as a client would send it."""

from __future__ import annotations

from typing import Any, Final

from cwm.cli.gateway.client import ToolRefusedError, call_tool, http_client, no_answer
from cwm.domain.clients.client import Protocol

_TOOL: Final = {
    "name": "look",
    "description": "Look at a file.",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
}
_HELLO: Final = [{"role": "user", "content": "Hello"}]
_BODIES: Final[dict[Protocol, dict[str, Any]]] = {
    Protocol.CHAT: {"messages": _HELLO, "max_tokens": 1, "tools": [{"type": "function", "function": _TOOL}]},
    Protocol.MESSAGES: {
        "messages": _HELLO,
        "max_tokens": 1,
        "tools": [{"name": "look", "input_schema": _TOOL["parameters"]}],
    },
    Protocol.RESPONSES: {
        "input": "Hello",
        "max_output_tokens": 16,
        "store": False,
        "tools": [{"type": "function", **_TOOL}],
    },
}


async def models(url: str, credential: str | None) -> dict[str, int | None]:
    """The models by name, the served one first, with the length of their context if it is given.

    Raises ConnectionError with a sentence that says why there are none.
    """
    content = await _ask("GET", url, "/v1/models", None, credential)
    lengths = {str(model["id"]): model.get("max_model_len") for model in content.get("data", ())}
    return {name: length if isinstance(length, int) else None for name, length in lengths.items()}


async def ask_model(url: str, protocol: Protocol, model: str, credential: str | None) -> None:
    """One short answer of the model, to a client that offers a tool; it is not recorded. Raises ConnectionError."""
    await _ask("POST", url, protocol.value, {"model": model, **_BODIES[protocol]}, credential)


async def ask_tools(url: str, credential: str | None) -> None:
    """One tool call over MCP. Raises ConnectionError."""
    try:
        await call_tool(url, "session_list", {"limit": 1}, credential=credential)
    except ToolRefusedError as refused:
        raise ConnectionError(f"{refused.code}: {refused.message}") from refused


async def _ask(
    method: str, url: str, path: str, body: dict[str, Any] | None, credential: str | None
) -> dict[str, Any]:
    import httpx2

    from cwm.cli.gateway.transport import LastAnswer

    last = LastAnswer()
    headers = {"CWM-Capture": "off"} | ({"Authorization": f"Bearer {credential}"} if credential else {})
    async with http_client(headers, last=last) as client:
        try:
            answer = await client.request(method, url + path, json=body)
        except httpx2.TransportError as failed:
            raise ConnectionError(no_answer(url, last)) from failed
    try:
        content = answer.json()
    except ValueError:
        content = {}
    if answer.is_success and isinstance(content, dict):
        return content
    error = content.get("error") if isinstance(content, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    raise ConnectionError(f"{path} answered {answer.status_code}: {message or 'no CWM gateway'}")
