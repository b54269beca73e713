"""The SDKs of OpenAI and Anthropic for Python. They name a conversation where the program gives them a header."""

from __future__ import annotations

from typing import Final

from cwm.domain.clients.client import Access, Client, Part, Protocol, python_key


def _openai_llm(access: Access) -> list[Part]:
    text = f'client = OpenAI(base_url="{access.url}/v1", api_key={python_key(access)})'
    return [Part(f"in Python; ask with model={access.model!r}", text)]


def _anthropic_llm(access: Access) -> list[Part]:
    text = f'client = Anthropic(base_url="{access.url}", auth_token={python_key(access)})'
    return [Part(f"in Python; ask with model={access.model!r}", text)]


def _question(source: str, model: str, limit: str = "") -> str:
    ask = f'model="{model}", messages=[{{"role": "user", "content": "…"}}]'
    return f'{ask}{limit}, extra_headers={{"CWM-Continue": "{source}"}}'


def _openai_ask(source: str, model: str) -> str:
    return f"client.chat.completions.create({_question(source, model)})"


def _anthropic_ask(source: str, model: str) -> str:
    return f"client.messages.create({_question(source, model, ', max_tokens=1024')})"


OPENAI: Final = Client("openai", "OpenAI SDK", Protocol.CHAT, _openai_llm, ask=_openai_ask)
ANTHROPIC: Final = Client("anthropic", "Anthropic SDK", Protocol.MESSAGES, _anthropic_llm, ask=_anthropic_ask)
