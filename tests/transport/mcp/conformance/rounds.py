"""What the conformance suite asks for by name: calls of several rounds, as 2026-07-28 asks its clients."""

from __future__ import annotations

from typing import Any, Final

from fastmcp import Context, FastMCP
from fastmcp.prompts import Message, PromptResult
from mcp_types import (
    ClientCapabilities,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitationCapability,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    ListRootsRequest,
    ListRootsResult,
    SamplingCapability,
    SamplingMessage,
    TextContent,
)

_CONFIRMATION: Final = {"ok": "boolean"}


def add_rounds(face: FastMCP[Any]) -> None:
    """Put a tool on ``face`` for every way to ask, and a prompt that asks."""
    _add_single_questions(face)
    _add_careful(face)
    _add_stateful(face)
    _add_prompt(face)


def _add_single_questions(face: FastMCP[Any]) -> None:
    @face.tool(name="test_input_required_result_elicitation")
    def elicitation(ctx: Context) -> str | InputRequiredResult:
        """Asks for a name."""
        name = _elicited(ctx, "user_name", "name")
        if name is None:
            return _ask(user_name=_elicit("What is your name?", name="string"))
        return f"Hello, {name}!"

    @face.tool(name="test_input_required_result_sampling")
    def sampling(ctx: Context) -> str | InputRequiredResult:
        """Asks the client's model."""
        answer = (ctx.input_responses or {}).get("capital_question")
        if not isinstance(answer, CreateMessageResult):
            return _ask(capital_question=_sample("What is the capital of France?", 100))
        return str(answer.content)

    @face.tool(name="test_input_required_result_list_roots")
    def list_roots(ctx: Context) -> str | InputRequiredResult:
        """Asks for the client's roots."""
        answer = (ctx.input_responses or {}).get("client_roots")
        if not isinstance(answer, ListRootsResult):
            return _ask(client_roots=ListRootsRequest(method="roots/list"))
        return ", ".join(str(root.uri) for root in answer.roots)


def _add_careful(face: FastMCP[Any]) -> None:
    @face.tool(name="test_input_required_result_capabilities")
    def capabilities(ctx: Context) -> str | InputRequiredResult:
        """Asks only what the client can answer."""
        can = ctx.session.check_client_capability
        questions: dict[str, InputRequest] = {}
        if can(ClientCapabilities(sampling=SamplingCapability())):
            questions["sampled"] = _sample("What is the capital of France?", 100)
        if can(ClientCapabilities(elicitation=ElicitationCapability())):
            questions["elicited"] = _elicit("What is your name?", name="string")
        return _ask(None, **questions) if not ctx.input_responses else "Done."

    @face.tool(name="test_streaming_elicitation")
    async def streaming(ctx: Context) -> str | InputRequiredResult:
        """Tells how far it is, then asks."""
        await ctx.report_progress(1, 2)
        name = _elicited(ctx, "user_name", "name")
        return name or _ask(user_name=_elicit("What is your name?", name="string"))


def _add_stateful(face: FastMCP[Any]) -> None:
    @face.tool(name="test_input_required_result_request_state")
    def request_state(ctx: Context) -> str | InputRequiredResult:
        """Gets back what it remembered."""
        if ctx.request_state != "remembered" or not ctx.input_responses:
            return _ask("remembered", confirm=_elicit("Please confirm", **_CONFIRMATION))
        return "state-ok"

    @face.tool(name="test_input_required_result_tampered_state")
    def tampered_state(ctx: Context) -> str | InputRequiredResult:
        """Remembers what nobody else may change."""
        if ctx.request_state is None:
            return _ask("remembered", confirm=_elicit("Please confirm", **_CONFIRMATION))
        return "Done."

    @face.tool(name="test_input_required_result_multiple_inputs")
    def multiple_inputs(ctx: Context) -> str | InputRequiredResult:
        """Asks three things at once."""
        answers = ctx.input_responses or {}
        if not answers.keys() >= {"user_name", "greeting", "client_roots"}:
            return _ask(
                "asked",
                user_name=_elicit("What is your name?", name="string"),
                greeting=_sample("Generate a greeting", 50),
                client_roots=ListRootsRequest(method="roots/list"),
            )
        return f"Answered: {sorted(answers)}"

    @face.tool(name="test_input_required_result_multi_round")
    def multi_round(ctx: Context) -> str | InputRequiredResult:
        """Asks, and asks again."""
        name = _elicited(ctx, "step1", "name")
        colour = _elicited(ctx, "step2", "color")
        if colour is not None:
            return f"{ctx.request_state} likes {colour}."
        if name is not None:
            return _ask(name, step2=_elicit("Step 2: What is your favorite color?", color="string"))
        return _ask("nobody", step1=_elicit("Step 1: What is your name?", name="string"))


def _add_prompt(face: FastMCP[Any]) -> None:
    @face.prompt(name="test_input_required_result_prompt")
    def prompt(ctx: Context) -> PromptResult | InputRequiredResult:
        """Asks before it answers."""
        context = _elicited(ctx, "user_context", "context")
        if context is None:
            return _ask(user_context=_elicit("What context should the prompt use?", context="string"))
        return PromptResult([Message(f"Use this context: {context}")])


def _elicited(ctx: Context, question: str, field: str) -> str | None:
    answer = (ctx.input_responses or {}).get(question)
    if not isinstance(answer, ElicitResult) or not answer.content:
        return None
    return str(answer.content.get(field))


def _ask(remember: str | None = None, /, **questions: InputRequest) -> InputRequiredResult:
    return InputRequiredResult(result_type="input_required", input_requests=questions, request_state=remember)


def _elicit(message: str, **fields: str) -> ElicitRequest:
    schema = {
        "type": "object",
        "properties": {name: {"type": type_} for name, type_ in fields.items()},
        "required": list(fields),
    }
    params = ElicitRequestFormParams(mode="form", message=message, requested_schema=schema)
    return ElicitRequest(method="elicitation/create", params=params)


def _sample(prompt: str, max_tokens: int) -> CreateMessageRequest:
    asked = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
    params = CreateMessageRequestParams(messages=[asked], max_tokens=max_tokens)
    return CreateMessageRequest(method="sampling/createMessage", params=params)
