"""What the conformance suite asks for by name: calls that change what the server offers."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from fastmcp import FastMCP

from cwm.domain.changes import Change, ChangeKind
from cwm.ports.changes import Changes


def add_change(face: FastMCP[Any], changes: Changes) -> None:
    """Put tools on ``face`` that add to its lists and say so."""

    @face.tool(name="test_trigger_tool_change")
    async def trigger_tool_change() -> str:
        """Offers one more tool."""

        @face.tool(name=f"one_more_{uuid4().hex}")
        def one_more() -> str:
            """What was not there before."""
            return "Done."

        await changes.publish(Change(ChangeKind.TOOLS))
        return "Done."

    @face.tool(name="test_trigger_prompt_change")
    async def trigger_prompt_change() -> str:
        """Offers one more prompt."""

        @face.prompt(name=f"one_more_{uuid4().hex}")
        def one_more() -> str:
            """What was not there before."""
            return "Done."

        await changes.publish(Change(ChangeKind.PROMPTS))
        return "Done."
