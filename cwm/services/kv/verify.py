"""Verify: replay a window's canary on KV that was just restored."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

from cwm.background import BackgroundTasks
from cwm.domain.canary import TOP_TOKENS, Canary, Evidence, Verification, compare
from cwm.ports.engine import Completion, Engine, Generation
from cwm.services.aside import outlasting
from cwm.services.kv.prefix import Prefix

_GREEDY: Final[dict[str, Any]] = {"temperature": 0, "ignore_eos": True, "logprobs": TOP_TOKENS}


@dataclass(frozen=True, slots=True)
class Verify:
    """``token_count``: length of a canary, 0 for none. ``tolerance`` is in nats."""

    engine: Engine
    token_count: int
    tolerance: float
    _replaying: BackgroundTasks = field(default_factory=BackgroundTasks)

    def request(self, prefix: Prefix, token_count: int | None = None) -> Generation | None:
        """The request that decodes a canary after ``prefix``; the canary is not stored. None if the model has no room for it."""
        wanted_tokens = self.token_count if token_count is None else token_count
        room = prefix.identity.max_model_len - len(prefix.token_ids)
        length = min(wanted_tokens, room)
        if length < 1:
            return None
        return replace(prefix.request(), max_tokens=length, sampling=_GREEDY)

    async def replay(self, prefix: Prefix, expected: Canary) -> Evidence:
        """Decode again and compare. The request is never abandoned: the engine may be loading KV for it."""
        request = self.request(prefix, len(expected.token_ids))
        if request is None:
            return Evidence(Verification.SKIPPED, reason="the context fills the model")
        task = self._replaying.start(self.engine.complete(request))
        # An engine with a shorter context than the one that recorded the canary can replay only a part of it.
        comparable = Canary(expected.token_ids[: request.max_tokens], expected.top[: request.max_tokens])
        return compare(comparable, canary_of(await outlasting(task)), self.tolerance)

    async def settle(self) -> None:
        """Wait for replays whose callers have disconnected."""
        await self._replaying.settled()


def canary_of(answer: Completion) -> Canary:
    return Canary(answer.token_ids, answer.top)
