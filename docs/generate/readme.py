"""The parts of README.md that follow from the code: ``python -m docs.generate.readme`` writes them in place."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

import typer

from cwm.domain.clients.client import Client
from cwm.domain.clients.known import CLIENTS
from cwm.settings import ENV_PREFIX, GROUPS
from cwm.transport.mcp.context.tools import context_tools
from cwm.transport.mcp.contract.agents import agent_tools
from cwm.transport.mcp.contract.engines import engine_tools
from cwm.transport.mcp.contract.sessions import session_tools
from cwm.transport.mcp.contract.system import system_tools
from cwm.transport.mcp.contract.turns import turn_tools
from cwm.transport.mcp.contract.windows import window_tools
from cwm.transport.mcp.results.tools import result_tools
from docs.generate import settings as settings_page

ESSENTIAL: Final = frozenset(
    {
        "host",
        "port",
        "public_url",
        "oauth_issuer",
        "api_keys",
        "database_url",
        "vllm_url",
        "lmcache_url",
        "coordinator_url",
        "secret",
        "shared_store_url",
        "model",
    }
)
"""The settings that README.md lists; ``docs/settings.md`` has all of them."""


def renewed(readme: str) -> str:
    """``readme`` with every generated block as the code has it now."""
    for name, block in (
        ("clients", clients()),
        ("tools", tools()),
        ("commands", commands()),
        ("settings", settings()),
    ):
        head, begin, rest = readme.partition(f"<!-- {name}:begin -->\n")
        _, end, tail = rest.partition(f"<!-- {name}:end -->")
        if not end:
            raise ValueError(f"README.md has no block '{name}'.")
        readme = head + begin + block + end + tail
    return readme


def clients() -> str:
    """Each client that ``cwm connect`` knows, with the faces that work."""
    rows = (
        f"| {client.title} | `cwm connect {client.name}` | {_served(client)} | {'yes' if client.mcp else 'no'} |\n"
        for client in CLIENTS
    )
    return "| client | | language model | tools (MCP) |\n| --- | --- | --- | --- |\n" + "".join(rows)


def _served(client: Client) -> str:
    return "no" if client.protocol is None else f"`{client.protocol.value}`"


def tools() -> str:
    """Each MCP tool with the first sentence of what an agent reads about it."""
    every = (
        *window_tools(),
        *session_tools(),
        *turn_tools(),
        *context_tools(),
        *result_tools(),
        *agent_tools(),
        *system_tools(),
        *engine_tools(),
    )
    rows = (f"| `{tool.name}` | {_first_sentence(tool.description or '')} |\n" for tool in every)
    return "| tool | |\n| --- | --- |\n" + "".join(rows)


def commands() -> str:
    """Each command with the first sentence of its help."""
    from cwm.cli.root import app

    group = typer.main.get_command(app)
    commands = getattr(group, "commands", {})
    rows = (
        f"| `cwm {name}` | {_first_sentence(command.help or '')} |\n" for name, command in commands.items()
    )
    return "| command | |\n| --- | --- |\n" + "".join(rows)


def settings() -> str:
    """The essential settings: variable, default, meaning."""
    rows = (
        f"| `{ENV_PREFIX}{name.upper()}` | {settings_page.default(spec.default)} | {spec.description} |\n"
        for group in GROUPS.values()
        for name, spec in group.model_fields.items()
        if name in ESSENTIAL
    )
    return "| variable | default | meaning |\n| --- | --- | --- |\n" + "".join(rows)


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.strip().split("\n\n")[0].split()).replace("``", "`").replace("|", "\\|")
    return re.split(r"(?<=\.)\s", paragraph)[0]


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "README.md")
    path.write_text(renewed(path.read_text()))
