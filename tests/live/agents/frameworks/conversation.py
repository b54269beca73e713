"""A conversation of a framework, run in a process of its own: ``python conversation.py NAME URL MODEL FOLDER AFTER QUESTION ...``.

The framework keeps the conversation in FOLDER, goes on with what is there, and knows of CWM only the base URL. It has a tool, and where
it has agents, a second one that is an agent. AFTER is ``all``, or the number of questions after which it goes on in another way, which leaves what is kept as it was.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Say = Callable[[str, int | None], object]
"""A question, and the number of questions that it comes after; None is all of them."""

INSTRUCTIONS = "Be brief."
ITS_INSTRUCTIONS = "You are a reader."
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def read_notes(path: str) -> str:
    """Reads the notes."""
    return f"{path} says: The code of the door is 4711."


def _before_question(messages: list[Any], number: int | None, is_question: Callable[[Any], bool]) -> int:
    """The index of the first message that is not before question ``number``, counted from 0."""
    places = [index for index, message in enumerate(messages) if is_question(message)]
    return len(messages) if number is None or number >= len(places) else places[number]


def _kept(file: Path) -> list[Any]:
    return list(json.loads(file.read_text())) if file.exists() else []


def _from_list(folder: Path, answered: Callable[[list[Any]], None]) -> Say:
    """What everybody writes around a plain client: ``answered`` adds to the messages until the model has no more calls."""
    file = folder / "messages.json"

    def say(question: str, after: int | None) -> None:
        messages = _kept(file)
        end = _before_question(
            messages, after, lambda each: each["role"] == "user" and isinstance(each["content"], str)
        )
        messages = [*messages[:end], {"role": "user", "content": question}]
        answered(messages)
        if after is None:
            file.write_text(json.dumps(messages))

    return say


def _openai_chat(url: str, model: str, folder: Path) -> Say:
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    function = {"name": "read_notes", "description": read_notes.__doc__, "parameters": PARAMETERS}
    tools: Any = [{"type": "function", "function": function}]

    def answered(messages: list[Any]) -> None:
        called: Any = True
        while called:
            opening: list[Any] = [{"role": "system", "content": INSTRUCTIONS}, *messages]
            answer = client.chat.completions.create(model=model, messages=opening, tools=tools)
            message = answer.choices[0].message
            called = message.tool_calls
            messages.append(message.model_dump(exclude_none=True))
            messages.extend(
                {"role": "tool", "tool_call_id": call.id, "content": read_notes(**_arguments(call.function))}
                for call in called or ()
            )

    return _from_list(folder, answered)


def _openai_responses(url: str, model: str, folder: Path) -> Say:
    """By ``previous_response_id``: of each question, the last response."""
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    tools: Any = [
        {
            "type": "function",
            "name": "read_notes",
            "description": read_notes.__doc__,
            "parameters": PARAMETERS,
            "strict": True,
        }
    ]
    file = folder / "responses.json"

    def say(question: str, after: int | None) -> None:
        responses = _kept(file)
        previous = next(iter(responses[:after][-1:]), None)
        new: Any = [{"role": "user", "content": question}]
        while new:
            response = client.responses.create(
                model=model, input=new, instructions=INSTRUCTIONS, tools=tools, previous_response_id=previous
            )
            previous = response.id
            new = [
                {
                    "type": "function_call_output",
                    "call_id": item.call_id,
                    "output": read_notes(**_arguments(item)),
                }
                for item in response.output
                if item.type == "function_call"
            ]
        if after is None:
            file.write_text(json.dumps([*responses, previous]))

    return say


def _anthropic(url: str, model: str, folder: Path) -> Say:
    from anthropic import Anthropic

    client = Anthropic(base_url=url, api_key="none", max_retries=0)
    tools: Any = [{"name": "read_notes", "description": read_notes.__doc__, "input_schema": PARAMETERS}]

    def answered(messages: list[Any]) -> None:
        while messages[-1]["role"] == "user":
            answer = client.messages.create(
                model=model, max_tokens=64, system=INSTRUCTIONS, messages=messages, tools=tools
            )
            blocks = [block.model_dump(exclude_none=True) for block in answer.content]
            messages.append({"role": "assistant", "content": blocks})
            results = [
                {"type": "tool_result", "tool_use_id": block["id"], "content": read_notes(**block["input"])}
                for block in blocks
                if block["type"] == "tool_use"
            ]
            if results:
                messages.append({"role": "user", "content": results})

    return _from_list(folder, answered)


def _arguments(call: Any) -> dict[str, Any]:
    return dict(json.loads(call.arguments))


def _openai_agents(url: str, model: str, folder: Path, *, responses: bool) -> Say:
    import agents
    from agents.extensions.memory import AdvancedSQLiteSession
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    kind = agents.OpenAIResponsesModel if responses else agents.OpenAIChatCompletionsModel
    reader = agents.Agent(name="reader", instructions=ITS_INSTRUCTIONS, model=kind(model, client))
    agent = agents.Agent(
        name="writer",
        instructions=INSTRUCTIONS,
        model=kind(model, client),
        tools=[agents.function_tool(read_notes), reader.as_tool("ask_reader", "Asks somebody who reads.")],
    )
    session = AdvancedSQLiteSession(session_id="talk", db_path=folder / "talk.db", create_tables=True)

    def say(question: str, after: int | None) -> None:
        if after is not None:
            asyncio.run(session.create_branch_from_turn(after + 1))
        agents.Runner.run_sync(agent, question, session=session)

    return say


def _langgraph(model: Any, folder: Path) -> Say:
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.prebuilt import create_react_agent

    saver = SqliteSaver(sqlite3.connect(folder / "talk.db", check_same_thread=False))
    reader = create_react_agent(model, [], prompt=ITS_INSTRUCTIONS)

    def ask_reader(input: str) -> str:  # noqa: A002 - its name in the openai-agents
        """Asks somebody who reads."""
        return str(reader.invoke({"messages": [("user", input)]})["messages"][-1].text)

    agent = create_react_agent(model, [read_notes, ask_reader], prompt=INSTRUCTIONS, checkpointer=saver)
    thread: Any = {"configurable": {"thread_id": "talk"}}

    def checkpoint(questions: int) -> Any:
        """That at which so many are answered."""
        for state in agent.get_state_history(thread):
            asked = [each for each in state.values["messages"] if each.type == "human"]
            if not state.next and len(asked) == questions:
                return state.config
        raise LookupError(f"No checkpoint after {questions} questions.")

    def say(question: str, after: int | None) -> None:
        place = thread if after is None else checkpoint(after)
        agent.invoke({"messages": [("user", question)]}, place)

    return say


def _chat_openai(url: str, model: str, **more: Any) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model=model, base_url=f"{url}/v1", api_key="none", **more)


def _chat_anthropic(url: str, model: str) -> Any:
    from langchain_anthropic import ChatAnthropic

    return ChatAnthropic(model_name=model, base_url=url, api_key="none", timeout=300, stop=None)


def _pydantic_ai(model: Any, folder: Path) -> Say:
    from pydantic_ai import Agent, ModelMessagesTypeAdapter

    reader = Agent(model, instructions=ITS_INSTRUCTIONS)

    async def ask_reader(input: str) -> str:  # noqa: A002 - its name in the openai-agents
        """Asks somebody who reads."""
        return str((await reader.run(input)).output)

    agent = Agent(model, instructions=INSTRUCTIONS, tools=[read_notes, ask_reader])
    file = folder / "messages.json"

    def is_question(message: Any) -> bool:
        return any(part.part_kind == "user-prompt" for part in message.parts)

    def say(question: str, after: int | None) -> None:
        messages = ModelMessagesTypeAdapter.validate_json(file.read_bytes()) if file.exists() else []
        end = _before_question(messages, after, is_question)
        result = agent.run_sync(question, message_history=messages[:end])
        if after is None:
            file.write_bytes(result.all_messages_json())

    return say


def _pydantic_openai(url: str, model: str, folder: Path, *, responses: bool) -> Say:
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind: Any = OpenAIResponsesModel if responses else OpenAIChatModel
    return _pydantic_ai(kind(model, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none")), folder)


def _pydantic_anthropic(url: str, model: str, folder: Path) -> Say:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    return _pydantic_ai(
        AnthropicModel(model, provider=AnthropicProvider(base_url=url, api_key="none")), folder
    )


FRAMEWORKS: dict[str, Callable[[str, str, Path], Say]] = {
    "openai-chat": _openai_chat,
    "openai-responses": _openai_responses,
    "anthropic": _anthropic,
    "openai-agents-responses": lambda *place: _openai_agents(*place, responses=True),
    "openai-agents-chat": lambda *place: _openai_agents(*place, responses=False),
    "langgraph-chat": lambda url, model, folder: _langgraph(_chat_openai(url, model), folder),
    "langgraph-responses": lambda url, model, folder: _langgraph(
        _chat_openai(url, model, use_responses_api=True), folder
    ),
    "langgraph-messages": lambda url, model, folder: _langgraph(_chat_anthropic(url, model), folder),
    "pydantic-ai-chat": lambda *place: _pydantic_openai(*place, responses=False),
    "pydantic-ai-responses": lambda *place: _pydantic_openai(*place, responses=True),
    "pydantic-ai-messages": _pydantic_anthropic,
}


if __name__ == "__main__":
    _, name, url, model, folder, after, *questions = sys.argv
    say = FRAMEWORKS[name](url, model, Path(folder))
    for question in questions:
        say(question, None if after == "all" else int(after))
