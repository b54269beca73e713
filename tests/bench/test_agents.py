"""``cwm bench agents``: what its figures mean, how clients send a conversation, and what stands beside CWM."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from cwm_bench.agents import resume, sides
from cwm_bench.agents.clients import AIDER, CLIENTS, CODEX, OPENCODE, AgentClient
from cwm_bench.agents.conversation import Conversation, sized
from cwm_bench.agents.resume import Resumed
from cwm_bench.agents.sides import AGAIN, CWM, LITELLM, VLLM, Side, ask, in_turns, litellm_program
from cwm_bench.agents.traffic import first_byte_figures, throughput_figures

OPENING = Conversation("Be brief.", "print('hello')")
NEXT = OPENING.goes_on("It greets.", "Whom?")


def said(client: AgentClient, conversation: Conversation) -> list[Any]:
    body = client.body(conversation, "model", 8)
    return list(body.get("messages") or body["input"])


@pytest.mark.parametrize(
    "client", [each for each in CLIENTS if each is not AIDER], ids=lambda each: each.name
)
def test_a_next_request_extends_the_one_before_it_and_has_the_same_tools(client: AgentClient) -> None:
    before, after = said(client, OPENING), said(client, NEXT)
    assert after[: len(before)] == before
    assert "It greets." in str(after[-2])
    assert "Whom?" in str(after[-1])
    assert client.body(OPENING, "model", 8)["tools"] == client.body(NEXT, "model", 8)["tools"]


def test_aider_sends_its_files_behind_what_was_said() -> None:
    before, after = said(AIDER, OPENING), said(AIDER, NEXT)
    assert before[0] == after[0]
    assert (OPENING.file in str(before[1]), OPENING.file in str(after[1])) == (True, False)
    assert OPENING.file in str(after[3])


def test_no_two_clients_begin_their_prompts_alike() -> None:
    begins = {
        str(client.body(OPENING, "model", 8).get("system") or said(client, OPENING)[0]) for client in CLIENTS
    }
    assert len(begins) == len(CLIENTS)


def test_an_answer_is_limited_in_the_words_of_its_protocol() -> None:
    assert OPENCODE.body(OPENING, "model", 8)["max_tokens"] == 8
    assert CODEX.body(OPENING, "model", 8)["max_output_tokens"] == 8


async def test_a_conversation_is_as_long_as_it_is_to_be_with_what_the_template_makes_of_its_tools() -> None:
    def tokenize(request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        return httpx2.Response(200, json={"count": len(body["prompt"]) // 4 if "prompt" in body else 500})

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(tokenize)) as http:
        made = await sized(http, "http://vllm", "model", 2_000)
        longer = await sized(http, "http://vllm", "model", 2_000, seed=1)
    assert len(made.file) == 1_500 * 4
    assert made.system[:100] != longer.system[:100]


async def test_a_request_says_where_it_was_recorded() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.headers["x-session-id"] == "mine"
        assert request.headers["authorization"] == "Bearer sk-1"
        headers = {"CWM-Turn": "turn_1", "CWM-Session-Id": "mine"}
        return httpx2.Response(200, headers=headers, stream=httpx2.ByteStream(b"data: {}\n\n"))

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
        asked = await ask(http, Side(CWM, "http://cwm", "sk-1"), OPENCODE, OPENING, "model", "mine", 8)
    assert (asked.turn, asked.session) == ("turn_1", "mine")
    assert 0 < asked.first_ms <= asked.whole_ms


@pytest.mark.parametrize(
    ("status", "content"),
    [(400, b"no"), (200, b'data: {"error": {}}\n\n'), (200, b"event: error\ndata: {}\n\n")],
)
async def test_an_answer_that_is_an_error_is_not_measured(status: int, content: bytes) -> None:
    transport = httpx2.MockTransport(lambda _: httpx2.Response(status, stream=httpx2.ByteStream(content)))
    async with httpx2.AsyncClient(transport=transport) as http:
        with pytest.raises(RuntimeError, match="http://cwm/v1/chat/completions answered"):
            await ask(http, Side(CWM, "http://cwm", "sk-1"), OPENCODE, OPENING, "model", "mine", 8)


def test_each_side_goes_first_in_its_turn() -> None:
    compared = [Side(VLLM, "a"), Side(CWM, "b"), Side(AGAIN, "a")]
    orders = [[side.name for side in in_turns(compared, number)] for number in range(3)]
    assert [order[0] for order in orders] == [VLLM, CWM, AGAIN]
    assert all(sorted(order) == sorted(orders[0]) for order in orders)


def test_added_ms_are_those_of_the_larger_conversation_and_the_worst_of_all() -> None:
    times = {
        ("chat", 2_000): {VLLM: [10.0, 11.0, 12.0], CWM: [16.0], AGAIN: [11.5]},
        ("chat", 6_000): {VLLM: [10.0], CWM: [13.0], AGAIN: [10.0]},
        ("messages", 6_000): {VLLM: [10.0], CWM: [14.0], AGAIN: [9.0]},
    }
    section, summary = first_byte_figures(times)
    assert summary == {
        "first_byte_added_ms": {"chat": 3.0, "messages": 4.0},
        "first_byte_added_ms_worst": 5.0,
        "first_byte_added_ms_litellm": "not installed",
    }
    assert section.rows[0] == ("chat", 2_000, 11.0, 16.0, 5.0, "not installed", "not installed", 0.5)


def test_litellm_stands_beside_where_it_was_measured() -> None:
    times = {("chat", 6_000): {VLLM: [10.0], CWM: [13.0], LITELLM: [40.0], AGAIN: [10.0]}}
    _, added = first_byte_figures(times)
    _, ratios = throughput_figures({"chat": {VLLM: [2.0], CWM: [2.5], LITELLM: [4.0], AGAIN: [2.0]}})
    assert added["first_byte_added_ms_litellm"] == {"chat": 30.0}
    assert ratios == {"throughput_ratio": {"chat": 0.8}, "throughput_ratio_litellm": {"chat": 0.5}}


def test_a_throughput_ratio_is_of_requests_per_second() -> None:
    section, summary = throughput_figures({"chat": {VLLM: [2.0, 4.0, 3.0], CWM: [4.0], AGAIN: [3.0]}})
    assert summary == {"throughput_ratio": {"chat": 0.75}, "throughput_ratio_litellm": "not installed"}
    assert section.rows == [("chat", 5.33, 4.0, 0.75, "not installed", "not installed", 1.0)]


def test_a_share_is_what_a_resumed_request_computed_of_its_prompt() -> None:
    section, summary = resume.figures([Resumed("codex", 6_000, 5_940, 41, 20.0, 80.0, 9_000.0)])
    assert summary == {"resume_prefill_share": {"codex": 0.01}}
    assert section.rows == [("codex", 6_000, 60, 0.01, 41, 20.0, 80.0, 9_000.0)]


def test_litellm_is_the_named_program_or_the_one_on_path_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert litellm_program(None) is None
    program = tmp_path / "litellm"
    program.touch(mode=0o755)
    assert litellm_program(None) == program
    assert litellm_program(Path("/else/litellm")) == Path("/else/litellm")


@pytest.mark.slow
async def test_a_litellm_without_its_proxy_is_left_out(tmp_path: Path) -> None:
    program = tmp_path / "litellm"
    program.write_text("#!/bin/sh\necho 'Missing dependency backoff'\nexit 1\n")
    program.chmod(0o755)
    stack: Any = SimpleNamespace(
        vllm_url="http://127.0.0.1:9", lmcache_url="none", coordinator_url="none", model_name="model"
    )
    lines: list[str] = []
    async with sides.sides(stack, tmp_path, program, lines.append) as compared:
        assert [side.name for side in compared] == [VLLM, CWM, AGAIN]
    assert "Missing dependency backoff" in lines[-1]
