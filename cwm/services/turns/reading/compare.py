"""Compare: what two contexts have in common, and what a switch from one to the other would cost."""

from __future__ import annotations

from dataclasses import dataclass

from cwm.domain.errors import CwmError
from cwm.domain.prefix import common_length, restorable_tokens
from cwm.domain.principal import Principal
from cwm.domain.turn import Message, Turn, TurnSource
from cwm.services.engines.directory import EngineDirectory
from cwm.services.kv.planner import Planner
from cwm.services.kv.prefix import Prefix, fitting
from cwm.services.turns.reading.history import Context, History


@dataclass(frozen=True, slots=True)
class Difference:
    """Two contexts. Their first ``common_tokens`` and ``common_messages`` are equal; the next message of each, if any, differs.

    Going on from the second after the first, an engine reuses ``reused_tokens`` of it and computes
    ``computed_tokens``; a thaw of the second is predicted to take ``thaw_ms`` (None: nothing was measured yet, or
    the engine does not answer). The turns are None for a window from before turns were kept.
    """

    left_tokens: int
    right_tokens: int
    common_tokens: int
    common_messages: int
    left_message: Message | None
    right_message: Message | None
    reused_tokens: int
    computed_tokens: int
    thaw_ms: float | None
    left_turn: Turn | None = None
    right_turn: Turn | None = None


@dataclass(frozen=True, slots=True)
class Compare:
    history: History
    directory: EngineDirectory
    planner: Planner

    async def __call__(self, principal: Principal, left: TurnSource, right: TurnSource) -> Difference:
        """CWM-1001/1002/1003, 2001, 2002, 2007."""
        first = await self.history.context(principal, left)
        second = await self.history.context(principal, right)
        common = common_length(first.token_ids, second.token_ids)
        messages = common_length(tuple(first.digests), tuple(second.digests))
        reused, thaw_ms = await self._cost(second, common)
        return Difference(
            left_tokens=len(first.token_ids),
            right_tokens=len(second.token_ids),
            common_tokens=common,
            common_messages=messages,
            left_message=await self.history.message(first, messages),
            right_message=await self.history.message(second, messages),
            reused_tokens=reused,
            computed_tokens=len(second.token_ids) - reused,
            thaw_ms=thaw_ms,
            left_turn=first.turn,
            right_turn=second.turn,
        )

    async def _cost(self, context: Context, common: int) -> tuple[int, float | None]:
        """The tokens that are reused, whole chunks, and the predicted time of a thaw in ms."""
        session = context.session
        try:
            identity = await self.directory.of(session)
        except CwmError:
            return common, None
        salt = self.directory.salt(session.tenant, session.salt_scope, identity)
        plan = await self.planner.predict(Prefix(fitting(context.token_ids, identity), salt, identity))
        chunk = identity.stored_chunk
        reused = common if chunk is None else restorable_tokens(common + 1, chunk)
        if identity.no_reuse:
            reused = 0
        return min(reused, max(len(context.token_ids) - 1, 0)), plan.predicted_ms
