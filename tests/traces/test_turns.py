"""Turns of a session as the conventions for generative models tell them: counts, and no word of what was said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.adapters.vllm.fake_vllm import MODEL, fake_vllm
from tests.traces.gateway import caller, http, traced_gateway
from tests.traces.sink import Sink
from tests.transport.llm.gateway import settings_for
from tests.transport.mcp.gateway import fastmcp_agent

pytestmark = pytest.mark.slow

SECRET = "Xk29-never-to-be-seen"
OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}


def asked(path: str, *, stream: bool) -> dict[str, Any]:
    said = {"messages": [{"role": "user", "content": SECRET}]} if "chat" in path else {"prompt": SECRET}
    return {
        "model": MODEL,
        "stream": stream,
        "stream_options": {"include_usage": True} if stream else None,
        **said,
    }


@pytest.mark.parametrize("path", OPERATIONS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_of_an_openai_client_is_told_with_its_model_and_what_it_used(
    tmp_path: Path, collector: Sink, path: str, stream: bool
) -> None:
    whose = caller()
    headers = {"traceparent": whose.parent, "cwm-session-id": "s1"}
    async with fake_vllm() as vllm:
        engine = settings_for(vllm.url)
        async with traced_gateway(tmp_path, collector, engine=engine) as url, http(url) as client:
            answer = await client.post(path, json=asked(path, stream=stream), headers=headers)
            assert answer.status_code == 200, answer.text
        (sent,) = vllm.turns
    (served,) = [span for span in collector.of(whose.trace) if span.kind == "server"]
    assert (served.name, served.parent, served.failed) == (f"POST {path}", whose.span, False)
    turns = [span for span in collector.spans if "gen_ai.conversation.id" in span.attributes]
    (turn,) = [span for span in turns if span.kind == "client"]
    assert turn.name == f"{OPERATIONS[path]} {MODEL}"
    assert (turn.kind, turn.parent, turn.failed) == ("client", served.id, False)
    assert (
        turn.attributes.items()
        >= {
            "gen_ai.operation.name": OPERATIONS[path],
            "gen_ai.provider.name": "vllm",
            "gen_ai.request.model": MODEL,
            "gen_ai.conversation.id": "s1",
        }.items()
    )
    assert turn.attributes["gen_ai.usage.input_tokens"] > 0
    (request,) = [
        span for span in collector.below(turn) if span.attributes.get("service.peer.name") == "vllm"
    ]
    assert request.attributes["http.response.status_code"] == 200
    assert sent.headers["traceparent"] == f"00-{whose.trace}-{request.id}-01"
    assert [span for span in collector.below(turn) if span.name.startswith("write ")]
    assert SECRET.encode() not in b"".join(collector.raw)


async def test_a_turn_by_mcp_tells_what_the_engine_was_asked_for_and_what_it_used(
    tmp_path: Path, collector: Sink, era: str
) -> None:
    async with fake_vllm() as vllm:
        engine = settings_for(vllm.url)
        async with (
            traced_gateway(tmp_path, collector, engine=engine) as url,
            fastmcp_agent(url, era) as agent,
        ):
            session = (await agent.call("session_create")).value["session_id"]
            said = await agent.call(
                "session_generate", {"session_id": session, "text": SECRET, "max_tokens": 4}
            )
            assert not said.is_error, said.text
    verb = collector.one("session_generate")
    assert verb.attributes["gen_ai.conversation.id"] == session
    assert verb.attributes["cwm.token_count"] > 0
    (turn,) = [span for span in collector.below(verb) if span.name == f"text_completion {MODEL}"]
    assert turn.attributes["gen_ai.request.max_tokens"] == 4
    assert turn.attributes["gen_ai.usage.input_tokens"] > 0
    assert SECRET.encode() not in b"".join(collector.raw)
