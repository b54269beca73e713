"""Ordinary turns of the other tenant, one after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import httpx2

from cwm_bench.hostile.engine import MODEL
from cwm_bench.hostile.figures import Waits
from cwm_bench.hostile.gateway import VICTIM, Target

_TURNS: Final = 12


@dataclass(slots=True)
class Victim:
    """``answered`` counts its turns."""

    target: Target
    answered: int = 0

    async def turns(self, until: asyncio.Task[Any]) -> Waits:
        """Conversations, each in a session of its own, until the task has ended."""
        milliseconds, lost = [], 0
        while True:
            headers = {**self.target.headers(VICTIM), "cwm-session-id": f"victim-{uuid4().hex}"}
            for messages in _conversation():
                began = time.perf_counter()
                is_answered = await self._ask(messages, headers)
                milliseconds.append((time.perf_counter() - began) * 1000)
                self.answered += is_answered
                lost += not is_answered
                if until.done():
                    return Waits(milliseconds, lost)

    async def alone(self, seconds: float) -> float:
        """The mean duration of a turn while nobody else asks, in ms."""
        return (await self.turns(asyncio.create_task(asyncio.sleep(seconds)))).mean

    async def _ask(self, messages: list[dict[str, str]], headers: dict[str, str]) -> bool:
        body = {"model": MODEL, "messages": messages, "max_tokens": 8}
        try:
            answer = await self.target.http.post(
                f"{self.target.url}/v1/chat/completions", json=body, headers=headers
            )
        except httpx2.TransportError:
            return False
        return answer.is_success


def _conversation() -> Iterator[list[dict[str, str]]]:
    """The messages of each turn."""
    messages: list[dict[str, str]] = []
    for number in range(_TURNS):
        messages.append({"role": "user", "content": f"Question {number} of an ordinary conversation."})
        yield list(messages)
        messages.append({"role": "assistant", "content": "As before."})
