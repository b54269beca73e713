"""A conversation as agents have them: a question, the file that a tool read for it, and what was said after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import httpx2

from cwm_bench.harness.token_corpus import text

QUESTION: Final = "What does this program do? Read it first."
READ: Final = "read"
ARGUMENTS: Final = {"path": "src/program.py"}
_SYSTEM_CHARS: Final = 3_000
_SAMPLE_CHARS: Final = 8_000
_TOOLS: Final = (READ, "write", "edit", "glob", "grep", "bash", "fetch", "task", "plan", "list")
_DESCRIPTION_CHARS: Final = 1_500


@dataclass(frozen=True, slots=True)
class Conversation:
    """``system`` text, the ``file`` that was read, and answers and questions in turns."""

    system: str
    file: str
    said: tuple[str, ...] = ()

    def goes_on(self, answer: str, question: str) -> Conversation:
        return replace(self, said=(*self.said, answer, question))

    def roles(self) -> Iterator[tuple[str, str]]:
        """Role and text of what was said after the file."""
        yield from zip(("assistant", "user") * (len(self.said) // 2), self.said, strict=True)


@cache
def tools() -> tuple[dict[str, Any], ...]:
    """As many as a coding agent has, and with as long descriptions: name, description and parameters of each."""
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    return tuple(
        {"name": name, "description": text("prose", _DESCRIPTION_CHARS, seed), "parameters": parameters}
        for seed, name in enumerate(_TOOLS)
    )


async def sized(
    http: httpx2.AsyncClient, vllm_url: str, model: str, tokens: int, seed: int = 0
) -> Conversation:
    """A conversation whose prompt is about ``tokens`` long, in whatever way the model's template renders it."""

    async def count(**prompt: Any) -> int:
        response = await http.post(f"{vllm_url}/tokenize", json={"model": model, **prompt})
        return int(response.raise_for_status().json()["count"])

    file = text("code", 4 * _SAMPLE_CHARS, seed)
    system = text("prose", _SYSTEM_CHARS, seed)
    functions = [{"type": "function", "function": tool} for tool in tools()]
    messages = [{"role": "system", "content": system}, {"role": "user", "content": QUESTION}]
    before = await count(messages=messages, tools=functions)
    chars_a_token = _SAMPLE_CHARS / await count(prompt=file[:_SAMPLE_CHARS])
    return Conversation(system, file[: max(0, int((tokens - before) * chars_a_token))])
