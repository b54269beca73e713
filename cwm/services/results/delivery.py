"""Delivering what a tool answered: whole while it fits the agent's budget, else kept and shown in part."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from cwm.domain.budgets import Budgets
from cwm.domain.cursor import Position
from cwm.domain.errors import CwmError, InternalError
from cwm.domain.preview import Preview
from cwm.domain.principal import Principal
from cwm.domain.results import Part
from cwm.domain.tool_policy import PreviewKind, ToolPolicy
from cwm.ports.token_counter import TokenCounter
from cwm.services.agents.context_manager import ContextManager
from cwm.services.results.answers import Counted, ToolAnswer, count, item_of, parts_of
from cwm.services.results.budget_ledger import Ledger
from cwm.services.results.preview.plain import plain_preview
from cwm.services.results.preview.result import preview_result
from cwm.services.results.results import Results
from cwm.services.results.savings import Savings
from cwm.services.results.token_drift import TokenDrift

_log = logging.getLogger("cwm.delivery")

# What stands beside a preview: what is shown, the handle, the cursor, how to read on, the link.
_TOKENS_OF_NOTE: Final = 300


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool, by the arguments that the agent sent."""

    agent: ContextManager
    tool: str
    policy: ToolPolicy
    arguments: Mapping[str, Any]

    @property
    def principal(self) -> Principal:
        return self.agent.principal

    def digest(self) -> str:
        """The same for the same arguments, in whatever order they stand."""
        told = json.dumps(self.arguments, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(told.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Weighed:
    """What an answer takes, and what it may take: None is any amount."""

    counted: Counted
    allowance: int | None

    @property
    def tokens(self) -> int:
        return self.counted.tokens

    @property
    def fits(self) -> bool:
        return self.allowance is None or self.tokens <= self.allowance


@dataclass(frozen=True, slots=True)
class Kept:
    """Where the whole answer is. ``cursor`` reads it from its start, ``size`` is in bytes."""

    handle: str
    cursor: str
    expires_at: datetime
    parts: int
    size: int
    media_type: str


@dataclass(frozen=True, slots=True)
class Shown:
    """What an agent is given instead: a preview, and either where the whole is or why it is not kept."""

    preview: Preview
    kept: Kept | None
    refusal: CwmError | None = None


class Delivery:
    """The budgets in force, and what becomes of an answer under them."""

    def __init__(
        self,
        results: Results,
        counter: TokenCounter,
        drift: TokenDrift,
        ledger: Ledger,
        savings: Savings,
        budgets: Budgets,
    ) -> None:
        self.budgets = budgets
        self.savings = savings
        self._results = results
        self._counter = counter
        self._drift = drift
        self._ledger = ledger

    def configure(self, budgets: Budgets) -> None:
        """Calls that begin after this go by these."""
        self.budgets = budgets

    async def allowance(self, agent: ContextManager, policy: ToolPolicy) -> int | None:
        """Most tokens that one result of a tool with this policy may take now; None for any amount."""
        return self.budgets.allowance(policy, await self._ledger.delivered(agent))

    async def weigh(self, call: Call, answer: ToolAnswer) -> Weighed:
        allowance = await self.allowance(call.agent, call.policy)
        return Weighed(await count(answer, self._counter), allowance)

    async def whole(self, call: Call, weighed: Weighed, *, follow_up: bool) -> None:
        """Take down that an answer goes out as it is; ``follow_up`` for one that reads on in another."""
        if follow_up:
            self.savings.follow_up(weighed.tokens)
        else:
            self.savings.whole(weighed.tokens)
        await self._goes_out(call.agent, weighed.counted)

    async def read_whole(self, agent: ContextManager, parts: Sequence[Part]) -> None:
        """Take down that parts of a stored result were read past the tools that read on in it."""
        if not self.budgets.enabled:
            return
        counted = await count(ToolAnswer([item_of(part) for part in parts]), self._counter)
        self.savings.follow_up(counted.tokens)
        await self._goes_out(agent, counted)

    async def shown(
        self, call: Call, answer: ToolAnswer, weighed: Weighed, schema: Mapping[str, Any] | None
    ) -> Shown:
        """Keep all of it, then make a preview that fits; nothing is kept where the store refuses, is away, or fails.

        What is not kept is shown as far as the budget goes: there is no second look at it. What no preview can be
        made of has no structured content in it, and shows how its texts begin.
        """
        assert weighed.allowance is not None
        try:
            kept, refusal = await self._kept(call, answer, call.policy), None
        except CwmError as refused:
            _log.warning("a result was not kept: %s", refused.message)
            kept, refusal = None, refused
        except Exception:
            logging.getLogger(__name__).exception("a result of %s was not kept", call.tool)
            kept, refusal = None, InternalError("The gateway failed to store it.")
        most = weighed.allowance if kept is None else min(weighed.allowance, call.policy.preview_tokens)
        policy = replace(call.policy, preview_tokens=max(most // 3, most - _TOKENS_OF_NOTE))
        if answer.is_error:
            # Some clients hold an error's structured content against the tool's schema.
            answer, schema = ToolAnswer(answer.content, is_error=True), None
            policy = replace(policy, preview=PreviewKind.AUTO, fields=())
        try:
            preview = await asyncio.to_thread(
                preview_result, answer.content, answer.structured, policy, self._counter, schema
            )
        except Exception:
            logging.getLogger(__name__).exception("no preview could be made of a result of %s", call.tool)
            preview = plain_preview(answer.content, answer.structured, policy.preview_tokens)
        return Shown(preview, kept, refusal)

    async def tell(self, call: Call, weighed: Weighed, shown: ToolAnswer, *, kept: bool) -> int:
        """Take down what is shown in the end, words beside it included; its tokens."""
        counted = await count(shown, self._counter)
        self.savings.preview(weighed.tokens, counted.tokens, kept=kept)
        await self._goes_out(call.agent, counted)
        return counted.tokens

    async def _goes_out(self, agent: ContextManager, counted: Counted) -> None:
        for text, tokens in counted.texts:
            self._drift.delivered(text, tokens)
        await self._ledger.add(agent, counted.tokens)

    async def _kept(self, call: Call, answer: ToolAnswer, policy: ToolPolicy) -> Kept:
        parts = await asyncio.to_thread(parts_of, answer)
        stored = await self._results.keep(call.principal, call.tool, call.digest(), parts, policy)
        return Kept(
            handle=stored.handle,
            cursor=self._results.cursor_at(call.principal, stored, Position(stored.handle, 0, 0)),
            expires_at=stored.expires_at,
            parts=len(stored.parts),
            size=stored.size,
            media_type=stored.parts[0].media_type,
        )
