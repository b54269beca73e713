"""Programs for the desktop that take tools alone: their language model is their vendor's."""

from __future__ import annotations

from typing import Final

from cwm.domain.clients.client import KEY_VARIABLE, Access, Client, Part, json_text, servers_text


def _cursor_mcp(access: Access) -> list[Part]:
    address = {"url": f"{access.url}/mcp"}
    return [
        Part("in .cursor/mcp.json", servers_text(access, "mcpServers", address, f"${{env:{KEY_VARIABLE}}}"))
    ]


def _claude_desktop_mcp(_: Access) -> list[Part]:
    server = {"command": "/path/to/.venv/bin/cwm", "args": ["stdio"]}
    return [Part("in claude_desktop_config.json", json_text({"mcpServers": {"cwm": server}}))]


CURSOR: Final = Client("cursor", "Cursor", mcp=_cursor_mcp)
CLAUDE_DESKTOP: Final = Client("claude-desktop", "Claude Desktop", mcp=_claude_desktop_mcp)
