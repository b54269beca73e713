"""An engine goes while it answers: the answer goes on elsewhere, and is the one that it would have been."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tests.live.conftest import served
from tests.live.cutter import Fuse, wires
from tests.live.engine import LiveEngine

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TOOL = {
    "type": "function",
    "function": {
        "name": "read_notes",
        "description": "Reads notes.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "read_notes", "arguments": {"path": "notes.txt"}}\n</tool_call>'
POEM = {"messages": [{"role": "user", "content": "Write a poem about Zürich, naïve cafés and 3 emojis 🎉."}]}
CASES = {
    "chat": (CHAT, {**POEM, "max_tokens": 40}),
    "completion": (COMPLETIONS, {"prompt": "Über naïve cafés 🎉 one says:", "max_tokens": 40}),
    "tools": (CHAT, {**POEM, "max_tokens": 40, "tools": [TOOL], "tool_choice": "auto"}),
    "call": (
        CHAT,
        {
            "messages": [
                {"role": "user", "content": "Read notes.txt."},
                {"role": "assistant", "content": CALL},
                {"role": "user", "content": "Read notes.txt."},
                {"role": "assistant", "content": CALL},
                {"role": "user", "content": "Read notes.txt."},
            ],
            "max_tokens": 60,
            "tools": [TOOL],
        },
    ),
}
CUTS = (1, 2, 5, 13, 21)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client makes of a stream."""

    content: str
    calls: list[dict[str, str]]
    ids: list[int]
    reason: str | None
    usage: tuple[int, int]
    done: bool


@dataclass(frozen=True, slots=True)
class Fleet:
    """A gateway with wires to one engine, each an engine of its own to it."""

    url: str
    model: str
    fuse: Fuse

    async def ask(self, path: str, body: dict[str, Any], *, cut_after: int | None = None) -> Answer:
        """One stream; after so many events its engine is gone."""
        self.fuse.events = cut_after
        request = {
            "model": self.model,
            "temperature": 0,
            "stream": True,
            "return_token_ids": True,
            "stream_options": {"include_usage": True},
            **body,
        }
        headers = {"CWM-Session-Id": f"s_{uuid4().hex[:10]}"}
        async with httpx2.AsyncClient(timeout=300, trust_env=False) as http:
            answer = await http.post(f"{self.url}{path}", json=request, headers=headers)
        assert answer.status_code == 200, answer.text
        return read(answer.text)


def read(stream: str) -> Answer:
    lines = [line.removeprefix("data: ") for line in stream.split("\n\n") if line]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    assert not any("error" in event for event in events), events[-1]
    choices = [choice for event in events for choice in event["choices"]]
    deltas = [choice.get("delta") or {"content": choice.get("text")} for choice in choices]
    calls: dict[int, dict[str, str]] = {}
    for piece in (each for delta in deltas for each in delta.get("tool_calls") or ()):
        call = calls.setdefault(piece["index"], {"name": "", "arguments": "", "ids": ""})
        call["ids"] += "x" if piece.get("id") else ""
        call["name"] += piece["function"].get("name") or ""
        call["arguments"] += piece["function"].get("arguments") or ""
    usage = next(event["usage"] for event in events if event.get("usage"))
    assert len({event["id"] for event in events}) == 1
    return Answer(
        "".join(delta.get("content") or "" for delta in deltas),
        [calls[index] for index in sorted(calls)],
        [token for choice in choices for token in choice.get("token_ids") or ()],
        next((choice["finish_reason"] for choice in choices if choice["finish_reason"]), None),
        (usage["prompt_tokens"], usage["completion_tokens"]),
        lines[-1] == "[DONE]",
    )


@asynccontextmanager
async def fleet_of(engine: LiveEngine, folder: Path) -> AsyncIterator[Fleet]:
    async with wires(engine.vllm_url, count=len(CASES) * len(CUTS) + 1) as (fuse, lines):
        config = folder / "cwm.yaml"
        entries = {
            f"engine-{number}": {"url": line.url, "lmcache": engine.lmcache_url}
            for number, line in enumerate(lines)
        }
        config.write_text(json.dumps({"engines": entries}))
        with served(engine, folder / "cwm.db", "acme", CWM_CONFIG=str(config)) as gateway:
            yield Fleet(gateway.url, gateway.model, fuse)


async def test_an_answer_goes_on_at_its_next_token_on_another_engine(
    engine: LiveEngine, tmp_path: Path
) -> None:
    async with fleet_of(engine, tmp_path) as fleet:
        for name, (path, body) in CASES.items():
            whole = await fleet.ask(path, body)
            assert whole.done
            assert (name == "call") == bool(whole.calls)
            for events in CUTS:
                answer = await fleet.ask(path, body, cut_after=events)
                assert fleet.fuse.events is None, "the wire broke"
                assert answer == whole, (name, events)
