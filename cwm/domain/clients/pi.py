"""pi. It sends its session's id where its configuration asks for that."""

from __future__ import annotations

from typing import Any, Final

from cwm.domain.clients.client import (
    KEY_VARIABLE,
    Access,
    Client,
    OwnFile,
    Part,
    Protocol,
    json_text,
    servers_text,
)

_MODELS: Final = "models.json"
_SERVERS: Final = "mcp.json"
_HOME: Final = ".pi/agent"
_VARIABLE: Final = f"${{{KEY_VARIABLE}}}"


def _llm_text(access: Access) -> str:
    model: dict[str, Any] = {"id": access.model}
    if access.context_tokens is not None:
        model |= {"contextWindow": access.context_tokens, "maxTokens": access.answer_tokens}
    provider = {
        "baseUrl": f"{access.url}/v1",
        "api": "openai-completions",
        "apiKey": _VARIABLE if access.keyed else "none",
        # Templates know no developer.
        "compat": {
            "supportsDeveloperRole": False,
            "sendSessionAffinityHeaders": True,
            "sessionAffinityFormat": "openai-nosession",
        },
        "models": [model],
    }
    return json_text({"providers": {"cwm": provider}})


def _mcp_text(access: Access) -> str:
    return servers_text(access, "mcpServers", {"url": f"{access.url}/mcp"}, _VARIABLE)


def _llm(access: Access) -> list[Part]:
    return [
        Part(f"in ~/{_HOME}/{_MODELS}", _llm_text(access)),
        Part("in a shell", f"pi --provider cwm --model {access.model}"),
    ]


def _mcp(access: Access) -> list[Part]:
    return [Part(f"in ~/{_HOME}/{_SERVERS}", _mcp_text(access))]


PI: Final = Client(
    "pi",
    "pi",
    Protocol.CHAT,
    _llm,
    _mcp,
    files=(
        OwnFile(_MODELS, (_llm_text,), _HOME, "PI_CODING_AGENT_DIR"),
        OwnFile(_SERVERS, (_mcp_text,), _HOME, "PI_CODING_AGENT_DIR"),
    ),
    headers=("x-session-affinity",),
    user_agents=("pi/",),
    resume="pi --continue",
)
