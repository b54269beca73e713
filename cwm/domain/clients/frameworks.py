"""Frameworks in which agents are written. None of them sends an id of its conversations."""

from __future__ import annotations

from typing import Final

from cwm.domain.clients.client import KEY_VARIABLE, Access, Client, Part, Protocol, python_key


def _agents_llm(access: Access) -> list[Part]:
    text = (
        f'client = AsyncOpenAI(base_url="{access.url}/v1", api_key={python_key(access)})\n'
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
    text = f'model = ChatOpenAI(model="{access.model}", base_url="{access.url}/v1", api_key={python_key(access)})'
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
        f'provider = OpenAIProvider(base_url="{access.url}/v1", api_key={python_key(access)})\n'
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


OPENAI_AGENTS: Final = Client("openai-agents", "OpenAI Agents SDK", Protocol.CHAT, _agents_llm, _agents_mcp)
LANGGRAPH: Final = Client("langgraph", "LangGraph", Protocol.CHAT, _langgraph_llm, _langgraph_mcp)
PYDANTIC_AI: Final = Client("pydantic-ai", "Pydantic AI", Protocol.CHAT, _pydantic_llm, _pydantic_mcp)
AI_SDK: Final = Client("ai-sdk", "AI SDK", Protocol.CHAT, _ai_sdk_llm, _ai_sdk_mcp)
