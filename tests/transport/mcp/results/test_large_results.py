"""What an upstream answers on its way through FastMCP."""

from __future__ import annotations

from typing import Any

from mcp_types import CallToolResult

from cwm.transport.mcp.upstreams.calls import _result

SAID = {"type": "text", "text": "see there"}


def answer(structured: Any) -> dict[str, Any]:
    return {"content": [SAID], "structuredContent": structured, "_meta": {"a": 1}, "isError": False}


def test_structured_content_is_passed_on_and_not_made_anew() -> None:
    rows = [{"id": 1, "text": "äöü\ud7ff", "share": 0.1}]
    result = _result("notes", answer({"rows": rows}), None)
    assert result.structured_content is not None
    assert result.structured_content["rows"] is rows
    told = result.to_mcp_result()
    assert isinstance(told, CallToolResult)
    wire = told.model_dump(by_alias=True, mode="json", exclude_none=True)
    assert wire["structuredContent"] == {"rows": rows}
    assert wire["content"] == [SAID]
    assert wire["_meta"] == {"a": 1}
