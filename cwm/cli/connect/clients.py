"""The clients that CWM knows, and what connects each to a gateway: its language model and its tools (MCP)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

KEY_VARIABLE: Final = "CWM_API_KEY"
"""The environment variable that clients, like CWM's own commands, read the key from."""


class Protocol(StrEnum):
    CHAT = "/v1/chat/completions"
    MESSAGES = "/v1/messages"
    RESPONSES = "/v1/responses"


@dataclass(frozen=True, slots=True)
class Access:
    """A gateway as clients see it. ``keyed``: it asks for a key, which is in ``CWM_API_KEY``."""

    url: str
    model: str
    keyed: bool = False

    @property
    def key(self) -> str:
        """For a shell."""
        return f"${KEY_VARIABLE}" if self.keyed else "none"


@dataclass(frozen=True, slots=True)
class Part:
    """Lines for one place: a shell, a program or a file. ``note`` says which."""

    note: str
    text: str


Parts = Callable[[Access], list[Part]]


@dataclass(frozen=True, slots=True)
class Client:
    """``llm`` speaks ``protocol``. None: the client cannot be connected in this way."""

    name: str
    title: str
    protocol: Protocol | None
    llm: Parts | None
    mcp: Parts | None


def _json(value: Any) -> str:
    return json.dumps(value, indent=2)


def _servers(access: Access, key: str, address: dict[str, Any], reference: str) -> str:
    headers = {"headers": {"Authorization": f"Bearer {reference}"}} if access.keyed else {}
    return _json({key: {"cwm": {**address, **headers}}})


def claude_settings(access: Access) -> dict[str, Any]:
    """Of Claude Code, without the key: its settings refer to no variables."""
    key = {} if access.keyed else {"ANTHROPIC_AUTH_TOKEN": "none"}
    return {
        "env": {
            "ANTHROPIC_BASE_URL": access.url,
            **key,
            "ANTHROPIC_MODEL": access.model,
            "ANTHROPIC_SMALL_FAST_MODEL": access.model,
        }
    }


def claude_servers(access: Access) -> dict[str, Any]:
    address = {"type": "http", "url": f"{access.url}/mcp"}
    servers: dict[str, Any] = json.loads(_servers(access, "mcpServers", address, f"${{{KEY_VARIABLE}}}"))
    return servers


def opencode_llm(access: Access) -> dict[str, Any]:
    return {
        "$schema": "https://opencode.ai/config.json",
        "model": f"cwm/{access.model}",
        "provider": {
            "cwm": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "CWM",
                "options": {
                    "baseURL": f"{access.url}/v1",
                    "apiKey": f"{{env:{KEY_VARIABLE}}}" if access.keyed else "none",
                },
                "models": {access.model: {}},
            }
        },
    }


def opencode_servers(access: Access) -> dict[str, Any]:
    address = {"type": "remote", "url": f"{access.url}/mcp", "enabled": True}
    servers: dict[str, Any] = json.loads(_servers(access, "mcp", address, f"{{env:{KEY_VARIABLE}}}"))
    return servers


def codex_llm(access: Access) -> tuple[str, str]:
    """Codex's settings: the lines before all tables, and a table."""
    key = f'env_key = "{KEY_VARIABLE}"\n' if access.keyed else ""
    return (
        f'model = "{access.model}"\nmodel_provider = "cwm"\n',
        f'[model_providers.cwm]\nname = "CWM"\nbase_url = "{access.url}/v1"\nwire_api = "responses"\n{key}',
    )


def codex_servers(access: Access) -> str:
    key = f'bearer_token_env_var = "{KEY_VARIABLE}"\n' if access.keyed else ""
    return f'[mcp_servers.cwm]\nurl = "{access.url}/mcp"\n{key}'


def _claude_llm(access: Access) -> list[Part]:
    lines = [
        f"export ANTHROPIC_BASE_URL={access.url}",
        f'export ANTHROPIC_AUTH_TOKEN="{access.key}"',
        f"export ANTHROPIC_MODEL={access.model} ANTHROPIC_SMALL_FAST_MODEL={access.model}",
    ]
    return [Part("in the shell that starts claude", "\n".join(lines))]


def _claude_mcp(access: Access) -> list[Part]:
    header = f' --header "Authorization: Bearer {access.key}"' if access.keyed else ""
    return [Part("once, in a shell", f"claude mcp add --transport http cwm {access.url}/mcp{header}")]


def _codex_llm(access: Access) -> list[Part]:
    return [Part("in ~/.codex/config.toml", "\n".join(codex_llm(access)).rstrip())]


def _codex_mcp(access: Access) -> list[Part]:
    return [Part("in ~/.codex/config.toml", codex_servers(access).rstrip())]


def _opencode_llm(access: Access) -> list[Part]:
    return [Part("in opencode.json", _json(opencode_llm(access)))]


def _opencode_mcp(access: Access) -> list[Part]:
    return [Part("in opencode.json", _json(opencode_servers(access)))]


def _qwen_llm(access: Access) -> list[Part]:
    lines = (
        f'export OPENAI_BASE_URL={access.url}/v1 OPENAI_API_KEY="{access.key}" OPENAI_MODEL={access.model}'
    )
    return [Part("in the shell that starts qwen", lines)]


def _qwen_mcp(access: Access) -> list[Part]:
    address = {"httpUrl": f"{access.url}/mcp"}
    return [Part("in ~/.qwen/settings.json", _servers(access, "mcpServers", address, f"${{{KEY_VARIABLE}}}"))]


def _continue_llm(access: Access) -> list[Part]:
    key = f"${{{{ secrets.{KEY_VARIABLE} }}}}" if access.keyed else "none"
    text = (
        f"models:\n  - name: CWM\n    provider: openai\n    model: {access.model}\n"
        f"    apiBase: {access.url}/v1\n    apiKey: {key}\n    roles: [chat, edit, apply]"
    )
    return [Part("in ~/.continue/config.yaml", text)]


def _continue_mcp(access: Access) -> list[Part]:
    key = f"${{{{ secrets.{KEY_VARIABLE} }}}}"
    headers = f"\n    requestOptions: {{headers: {{Authorization: Bearer {key}}}}}" if access.keyed else ""
    text = f"mcpServers:\n  - name: cwm\n    type: streamable-http\n    url: {access.url}/mcp{headers}"
    return [Part("in ~/.continue/config.yaml", text)]


def _aider_llm(access: Access) -> list[Part]:
    text = f'aider --model openai/{access.model} --openai-api-base {access.url}/v1 --openai-api-key "{access.key}"'
    settings = f"- name: openai/{access.model}\n  extra_params:\n    extra_headers:\n      CWM-Session-Id: my-conversation"
    note = (
        "in .aider.model.settings.yml, so that its requests are one session: it rewrites what it said before"
    )
    return [Part("in a shell", text), Part(note, settings)]


def _cursor_mcp(access: Access) -> list[Part]:
    address = {"url": f"{access.url}/mcp"}
    return [Part("in .cursor/mcp.json", _servers(access, "mcpServers", address, f"${{env:{KEY_VARIABLE}}}"))]


def _desktop_mcp(_: Access) -> list[Part]:
    server = {"command": "/path/to/.venv/bin/cwm", "args": ["stdio"]}
    return [Part("in claude_desktop_config.json", _json({"mcpServers": {"cwm": server}}))]


def _python(access: Access) -> str:
    return f'os.environ["{KEY_VARIABLE}"]' if access.keyed else '"none"'


def _openai_llm(access: Access) -> list[Part]:
    text = f'client = OpenAI(base_url="{access.url}/v1", api_key={_python(access)})'
    return [Part(f"in Python; ask with model={access.model!r}", text)]


def _anthropic_llm(access: Access) -> list[Part]:
    text = f'client = Anthropic(base_url="{access.url}", auth_token={_python(access)})'
    return [Part(f"in Python; ask with model={access.model!r}", text)]


def _agents_llm(access: Access) -> list[Part]:
    text = (
        f'client = AsyncOpenAI(base_url="{access.url}/v1", api_key={_python(access)})\n'
        f'model = OpenAIChatCompletionsModel(model="{access.model}", openai_client=client)'
    )
    return [Part("in Python", text)]


def _agents_mcp(access: Access) -> list[Part]:
    key = f'os.environ["{KEY_VARIABLE}"]'
    headers = f', "headers": {{"Authorization": f"Bearer {{{key}}}"}}' if access.keyed else ""
    return [
        Part("in Python", f'server = MCPServerStreamableHttp(params={{"url": "{access.url}/mcp"{headers}}})')
    ]


def _langgraph_llm(access: Access) -> list[Part]:
    text = (
        f'model = ChatOpenAI(model="{access.model}", base_url="{access.url}/v1", api_key={_python(access)})'
    )
    return [Part("in Python", text)]


def _langgraph_mcp(access: Access) -> list[Part]:
    key = f'os.environ["{KEY_VARIABLE}"]'
    headers = f', "headers": {{"Authorization": f"Bearer {{{key}}}"}}' if access.keyed else ""
    text = (
        'client = MultiServerMCPClient({"cwm": {"transport": "streamable_http", '
        f'"url": "{access.url}/mcp"{headers}}}}})'
    )
    return [Part("in Python", text)]


def _pydantic_llm(access: Access) -> list[Part]:
    text = (
        f'provider = OpenAIProvider(base_url="{access.url}/v1", api_key={_python(access)})\n'
        f'model = OpenAIChatModel("{access.model}", provider=provider)'
    )
    return [Part("in Python", text)]


def _pydantic_mcp(access: Access) -> list[Part]:
    key = f'os.environ["{KEY_VARIABLE}"]'
    headers = f', headers={{"Authorization": f"Bearer {{{key}}}"}}' if access.keyed else ""
    return [Part("in Python", f'server = MCPServerStreamableHTTP("{access.url}/mcp"{headers})')]


def _ai_sdk_llm(access: Access) -> list[Part]:
    key = f"process.env.{KEY_VARIABLE}" if access.keyed else '"none"'
    text = (
        f'const cwm = createOpenAICompatible({{name: "cwm", baseURL: "{access.url}/v1", apiKey: {key}}});\n'
        f'const model = cwm("{access.model}");'
    )
    return [Part("in TypeScript", text)]


def _ai_sdk_mcp(access: Access) -> list[Part]:
    headers = (
        f", headers: {{Authorization: `Bearer ${{process.env.{KEY_VARIABLE}}}`}}" if access.keyed else ""
    )
    text = f'const tools = await createMCPClient({{transport: {{type: "http", url: "{access.url}/mcp"{headers}}}}});'
    return [Part("in TypeScript", text)]


CLIENTS: Final = (
    Client("claude-code", "Claude Code", Protocol.MESSAGES, _claude_llm, _claude_mcp),
    Client("codex", "Codex", Protocol.RESPONSES, _codex_llm, _codex_mcp),
    Client("opencode", "opencode", Protocol.CHAT, _opencode_llm, _opencode_mcp),
    Client("qwen-code", "Qwen Code", Protocol.CHAT, _qwen_llm, _qwen_mcp),
    Client("continue", "Continue", Protocol.CHAT, _continue_llm, _continue_mcp),
    Client("aider", "aider", Protocol.CHAT, _aider_llm, None),
    Client("cursor", "Cursor", None, None, _cursor_mcp),
    Client("claude-desktop", "Claude Desktop", None, None, _desktop_mcp),
    Client("openai", "OpenAI SDK", Protocol.CHAT, _openai_llm, None),
    Client("anthropic", "Anthropic SDK", Protocol.MESSAGES, _anthropic_llm, None),
    Client("openai-agents", "OpenAI Agents SDK", Protocol.CHAT, _agents_llm, _agents_mcp),
    Client("langgraph", "LangGraph", Protocol.CHAT, _langgraph_llm, _langgraph_mcp),
    Client("pydantic-ai", "Pydantic AI", Protocol.CHAT, _pydantic_llm, _pydantic_mcp),
    Client("ai-sdk", "AI SDK", Protocol.CHAT, _ai_sdk_llm, _ai_sdk_mcp),
)
