"""Which engine serves a session: the one that has its KV, until that is gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from cwm.domain.engine import EngineIdentity
from cwm.domain.errors import ConcurrencyLimitError, EngineConnectionError
from cwm.domain.prefix import TokenIds
from cwm.domain.session import Session
from cwm.ports.registry import Registry
from cwm.services.engines.directory import EngineDirectory

_WHEN_ONE_IS_FREE_SECONDS: Final = 1


@dataclass(frozen=True, slots=True)
class Place:
    registry: Registry
    directory: EngineDirectory

    async def __call__(self, session: Session, turn: ExitStack) -> EngineIdentity:
        """The identity of the session's model on the engine that takes its next turn, and counts as that engine's work until ``turn`` is closed.

        A session stays where it is while that engine is there and not full; another one goes to the engine that has most of its prefix, of
        equals to the one with the least work. CWM-1003 if no engine serves the model, CWM-5001 if those that do are gone, CWM-7002 if they are full.
        """
        if self.directory.is_one:
            return await self.directory.identity(session.model)
        if await self.directory.takes(session.engine, session.model, session.tenant):
            return await self._at(session.engine or "", session.model, turn)
        chosen = await self._nearest(
            session.model,
            session.tenant,
            session.salt_scope,
            lambda: self.registry.session_tokens(session.tenant, session.id),
            count=session.token_count,
        )
        with ExitStack() as choice:
            # Counted from now on: others are placed while this choice is written down.
            choice.enter_context(self.directory.works(chosen))
            settled = await self.registry.settle_session(session, chosen, session.engine)
            if settled in {None, chosen} or not await self.directory.takes(
                settled, session.model, session.tenant
            ):
                turn.enter_context(choice.pop_all())
                return await self.directory.identity(session.model, chosen)
        # Another gateway has placed it meanwhile.
        return await self._at(settled or "", session.model, turn)

    async def anywhere(
        self, model: str, tenant: str, turn: ExitStack, salt_scope: str = "", token_ids: TokenIds = ()
    ) -> EngineIdentity:
        """As for a session that has no engine: for a request without a session, or a session to come with this prefix."""
        if self.directory.is_one:
            return await self.directory.identity(model)

        async def tokens() -> TokenIds:
            return token_ids

        chosen = await self._nearest(model, tenant, salt_scope, tokens, count=len(token_ids))
        return await self._at(chosen, model, turn)

    async def _at(self, engine: str, model: str, turn: ExitStack) -> EngineIdentity:
        turn.enter_context(self.directory.works(engine))
        return await self.directory.identity(model, engine)

    async def _nearest(
        self,
        model: str,
        tenant: str,
        salt_scope: str,
        token_ids: Callable[[], Awaitable[TokenIds]],
        *,
        count: int,
    ) -> str:
        candidates = await self._candidates(model, tenant)
        if len(candidates) == 1 or not count:
            return candidates[0]
        held = await self.directory.held(model, candidates, tenant, salt_scope, await token_ids())
        # Others may have been placed meanwhile.
        return max(await self._candidates(model, tenant), key=lambda name: held.get(name, 0))

    async def _candidates(self, model: str, tenant: str) -> tuple[str, ...]:
        candidates = await self.directory.candidates(model, tenant)
        if not candidates:
            await self.directory.identity(model, tenant=tenant)
            raise EngineConnectionError(f"No engine that serves '{model}' answers.", model=model)
        free = tuple(name for name in candidates if not self.directory.is_full(name))
        if not free:
            raise ConcurrencyLimitError(
                f"Every engine that serves '{model}' has as many requests as it may.",
                retry_after=_WHEN_ONE_IS_FREE_SECONDS,
                model=model,
                engines=len(candidates),
            )
        return free
