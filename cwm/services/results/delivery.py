"""Delivers a tool's answer: whole if it fits the agent's budget, else stored and shown as a preview."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cwm.domain.budgets import Budgets
from cwm.domain.cursor import Position
from cwm.domain.errors import CwmError, InternalError
from cwm.domain.preview import Preview
from cwm.domain.results import Part, StoredResult
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
from cwm.threads import in_thread

_log = logging.getLogger("cwm.delivery")

# Tokens of the note beside a preview: what is shown, the handle, the cursor, how to read on, the link.
_TOKENS_OF_NOTE: Final = 300


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool, with the arguments that the agent sent."""

    agent: ContextManager
    tool: str
    policy: ToolPolicy
    arguments: Mapping[str, Any]

    def digest(self) -> str:
        """A digest of the arguments that does not depend on their order."""
        material = json.dumps(self.arguments, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(material.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Weighed:
    """The tokens of an answer and its allowance; None means no limit."""

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
    """The whole answer as stored, and the cursor that reads it from the start."""

    result: StoredResult
    cursor: str


@dataclass(frozen=True, slots=True)
class Shown:
    """What is delivered instead of the answer: a preview, and either where the whole is stored or why it is not."""

    preview: Preview
    kept: Kept | None
    refusal: CwmError | None = None


@dataclass(slots=True)
class Delivery:
    """Applies the budgets in force to answers. Other ``budgets`` are for calls that begin from then on."""

    results: Results
    counter: TokenCounter
    drift: TokenDrift
    ledger: Ledger
    savings: Savings
    budgets: Budgets

    async def allowance(self, agent: ContextManager, policy: ToolPolicy) -> int | None:
        """The most tokens that a result of a tool with this policy may take now; None means no limit."""
        return self.budgets.allowance(policy, await self.ledger.delivered(agent))

    async def weigh(self, call: Call, answer: ToolAnswer) -> Weighed:
        """Count the answer's tokens and look up its allowance."""
        allowance = await self.allowance(call.agent, call.policy)
        return Weighed(await count(answer, self.counter), allowance)

    async def whole(self, call: Call, weight: Weighed, *, follow_up: bool) -> None:
        """Record that an answer is delivered whole; ``follow_up``: it is a further piece of a stored result."""
        if follow_up:
            self.savings.follow_up(call.agent.principal.tenant, weight.tokens)
        else:
            self.savings.whole(call.agent.principal.tenant, weight.tokens)
        await self._goes_out(call.agent, weight.counted)

    async def read_whole(self, agent: ContextManager, parts: Sequence[Part]) -> None:
        """Record that parts of a stored result were read by other means than the result tools."""
        if not self.budgets.enabled:
            return
        size = await count(ToolAnswer([item_of(part) for part in parts]), self.counter)
        self.savings.follow_up(agent.principal.tenant, size.tokens)
        await self._goes_out(agent, size)

    async def shown(
        self, call: Call, answer: ToolAnswer, weight: Weighed, schema: Mapping[str, Any] | None
    ) -> Shown:
        """Store the whole answer, then make a preview that fits. Not stored if the store refuses, is unreachable, or fails.

        The preview of an answer that is not stored uses the whole allowance, as the agent cannot read the rest. If no
        preview can be made, the beginnings of the texts are shown without structured content.
        """
        assert weight.allowance is not None
        try:
            copy, refusal = await self._store(call, answer, call.policy), None
        except CwmError as error:
            _log.warning("a result was not kept: %s", error.message)
            copy, refusal = None, error
        except Exception:
            logging.getLogger(__name__).exception("a result of %s was not kept", call.tool)
            copy, refusal = None, InternalError("The gateway failed to store it.")
        most = weight.allowance if copy is None else min(weight.allowance, call.policy.preview_tokens)
        policy = replace(call.policy, preview_tokens=max(most // 3, most - _TOKENS_OF_NOTE))
        if answer.is_error:
            # Some clients validate an error's structured content by the tool's schema.
            answer, schema = ToolAnswer(answer.content, is_error=True), None
            policy = replace(policy, preview=PreviewKind.AUTO, fields=())
        try:
            preview = await in_thread(
                preview_result, answer.content, answer.structured, policy, self.counter, schema
            )
        except Exception:
            logging.getLogger(__name__).exception("no preview could be made of a result of %s", call.tool)
            preview = plain_preview(answer.content, answer.structured, policy.preview_tokens)
        return Shown(preview, copy, refusal)

    async def tell(self, call: Call, weight: Weighed, answer: ToolAnswer, *, kept: bool) -> int:
        """Record what is delivered in the end, with the note beside the preview; returns its tokens."""
        size = await count(answer, self.counter)
        self.savings.preview(call.agent.principal.tenant, weight.tokens, size.tokens, kept=kept)
        await self._goes_out(call.agent, size)
        return size.tokens

    async def _goes_out(self, agent: ContextManager, size: Counted) -> None:
        for text, tokens in size.texts:
            self.drift.delivered(text, tokens)
        await self.ledger.add(agent, size.tokens)

    async def _store(self, call: Call, answer: ToolAnswer, policy: ToolPolicy) -> Kept:
        parts = await in_thread(parts_of, answer)
        stored = await self.results.keep(call.agent.principal, call.tool, call.digest(), parts, policy)
        return Kept(
            stored, self.results.cursor_at(call.agent.principal, stored, Position(stored.handle, 0, 0))
        )
