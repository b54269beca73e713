"""A conversation of a framework, run in a process of its own: ``python conversation.py NAME URL MODEL QUESTION ...``.

The framework keeps the conversation; it has one tool, and knows of CWM only the base URL.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

Say = Callable[[str], object]

INSTRUCTIONS = "Be brief."


def read_notes(path: str) -> str:
    """Reads the notes."""
    return f"{path} says: The code of the door is 4711."


def _openai_agents(url: str, model: str, *, responses: bool) -> Say:
    import agents
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    kind = agents.OpenAIResponsesModel if responses else agents.OpenAIChatCompletionsModel
    agent = agents.Agent(
        name="reader",
        instructions=INSTRUCTIONS,
        model=kind(model, client),
        tools=[agents.function_tool(read_notes)],
    )
    session = agents.SQLiteSession("talk")
    return lambda question: agents.Runner.run_sync(agent, question, session=session)


def _langgraph(model: Any) -> Say:
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.prebuilt import create_react_agent

    agent = create_react_agent(model, [read_notes], prompt=INSTRUCTIONS, checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "talk"}}
    return lambda question: agent.invoke({"messages": [("user", question)]}, thread)


def _chat_openai(url: str, model: str, **more: Any) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model=model, base_url=f"{url}/v1", api_key="none", **more)


def _chat_anthropic(url: str, model: str) -> Any:
    from langchain_anthropic import ChatAnthropic

    return ChatAnthropic(model_name=model, base_url=url, api_key="none", timeout=300, stop=None)


def _pydantic_ai(model: Any) -> Say:
    from pydantic_ai import Agent

    agent = Agent(model, instructions=INSTRUCTIONS, tools=[read_notes])
    history: list[Any] = []

    def say(question: str) -> None:
        history[:] = agent.run_sync(question, message_history=history).all_messages()

    return say


def _pydantic_openai(url: str, model: str, *, responses: bool) -> Say:
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind: Any = OpenAIResponsesModel if responses else OpenAIChatModel
    return _pydantic_ai(kind(model, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none")))


def _pydantic_anthropic(url: str, model: str) -> Say:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    return _pydantic_ai(AnthropicModel(model, provider=AnthropicProvider(base_url=url, api_key="none")))


FRAMEWORKS: dict[str, Callable[[str, str], Say]] = {
    "openai-agents-responses": lambda url, model: _openai_agents(url, model, responses=True),
    "openai-agents-chat": lambda url, model: _openai_agents(url, model, responses=False),
    "langgraph-chat": lambda url, model: _langgraph(_chat_openai(url, model)),
    "langgraph-responses": lambda url, model: _langgraph(_chat_openai(url, model, use_responses_api=True)),
    "langgraph-messages": lambda url, model: _langgraph(_chat_anthropic(url, model)),
    "pydantic-ai-chat": lambda url, model: _pydantic_openai(url, model, responses=False),
    "pydantic-ai-responses": lambda url, model: _pydantic_openai(url, model, responses=True),
    "pydantic-ai-messages": _pydantic_anthropic,
}


if __name__ == "__main__":
    _, name, url, model, *questions = sys.argv
    say = FRAMEWORKS[name](url, model)
    for question in questions:
        say(question)
