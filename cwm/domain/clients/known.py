"""All clients, in the order in which they are listed and asked for what they know, and what is asked of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cwm.domain.clients.aider import AIDER
from cwm.domain.clients.anythingllm import ANYTHINGLLM
from cwm.domain.clients.claude_code import CLAUDE_CODE
from cwm.domain.clients.client import Client
from cwm.domain.clients.cline import CLINE
from cwm.domain.clients.codex import CODEX
from cwm.domain.clients.continue_cli import CONTINUE
from cwm.domain.clients.desktop import CLAUDE_DESKTOP, CURSOR
from cwm.domain.clients.frameworks import AI_SDK, LANGGRAPH, OPENAI_AGENTS, PYDANTIC_AI
from cwm.domain.clients.librechat import LIBRECHAT
from cwm.domain.clients.lobechat import LOBECHAT
from cwm.domain.clients.mini_swe_agent import MINI_SWE_AGENT
from cwm.domain.clients.open_webui import OPEN_WEBUI
from cwm.domain.clients.opencode import OPENCODE
from cwm.domain.clients.pi import PI
from cwm.domain.clients.qwen_code import QWEN_CODE
from cwm.domain.clients.sdks import ANTHROPIC, OPENAI
from cwm.domain.messages import plain_text
from cwm.domain.turn import Message

CLIENTS: Final[tuple[Client, ...]] = (
    CLAUDE_CODE,
    CODEX,
    OPENCODE,
    QWEN_CODE,
    CONTINUE,
    CLINE,
    PI,
    AIDER,
    MINI_SWE_AGENT,
    CURSOR,
    CLAUDE_DESKTOP,
    OPEN_WEBUI,
    LIBRECHAT,
    LOBECHAT,
    ANYTHINGLLM,
    OPENAI,
    ANTHROPIC,
    OPENAI_AGENTS,
    LANGGRAPH,
    PYDANTIC_AI,
    AI_SDK,
)
_ASIDE_WORDS: Final = tuple(words for client in CLIENTS for words in client.aside_words)
_TOOL_NAMES: Final = tuple(dict.fromkeys(client.tool_name.partition("{}")[::2] for client in CLIENTS))


def asks_aside(messages: Sequence[Message]) -> bool:
    """Whether the last message asks, in a client's own words, for a summary, a title or the like, instead of the conversation."""
    last = messages[-1].content if messages else {}
    text = plain_text(last) if last.get("role") == "user" else ""
    return any(all(word in text for word in words) for words in _ASIDE_WORDS)


def bare_tool_name(name: str) -> str:
    """A tool's own name, without what a client puts around the tools of its MCP server ``cwm``."""
    return next(
        (
            name.removeprefix(before).removesuffix(after)
            for before, after in _TOOL_NAMES
            if before + after and name.startswith(before) and name.endswith(after)
        ),
        name,
    )
