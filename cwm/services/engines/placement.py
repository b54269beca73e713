"""Which engine serves a session: the one that has its KV, until that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from cwm.domain.engine import EngineIdentity, engine_key
from cwm.domain.errors import ConcurrencyLimitError, CwmError, EngineConnectionError
from cwm.domain.prefix import TokenIds
from cwm.domain.session import Session
from cwm.ports.clock import Clock
from cwm.ports.registry import Registry
from cwm.services.engines.directory import EngineDirectory

_WHEN_ONE_IS_FREE_SECONDS: Final = 1
_LOOK_AGAIN_SECONDS: Final = 0.05
# How long placements wait for an engine to say who it is, and how long it is not asked again.
_ASK_SECONDS: Final = 0.5
_ASK_AGAIN_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Ask:
    """``begun``: in seconds of the event loop's clock."""

    task: asyncio.Task[None]
    begun: float


@dataclass(frozen=True, slots=True)
class Place:
    """``patience_seconds``: how long a turn waits for a move of its session. Then it goes on where the session is."""

    registry: Registry
    directory: EngineDirectory
    clock: Clock
    patience_seconds: float = 5.0
    _asks: dict[tuple[str, str], _Ask] = field(default_factory=dict)
    """The last of each engine and model of which the identity was not known."""

    async def __call__(self, session: Session, turn: ExitStack) -> EngineIdentity:
        """The identity of the session's model on the engine that takes its next turn, and counts as that engine's work until ``turn`` is closed.

        A session stays where it is while that engine is there and not full; another one goes to an engine of its deployment, of these to the one that
        has most of its prefix, of equals to the one with the least work, and to none that is drained while another one is there. One that has no
        deployment yet goes to the new one, where an operator named one. An engine that went since it was seen
        last takes nothing. CWM-1003 if no engine serves the model, CWM-5001 if those that do are gone, CWM-7002 if they are full.
        """
        if self.directory.is_one:
            return await self.directory.identity(session.model)
        session = await self._unmoved(session)
        return await self._where_one_answers(lambda work: self._placed(session, work), turn)

    async def anywhere(
        self,
        model: str,
        tenant: str,
        turn: ExitStack,
        salt_scope: str = "",
        token_ids: TokenIds = (),
        like: EngineIdentity | None = None,
    ) -> EngineIdentity:
        """As for a session that has no engine: for a request without a session, or a session to come with this prefix.

        ``like``: the deployment that has its KV.
        """
        if self.directory.is_one:
            return await self.directory.identity(model)

        async def tokens() -> TokenIds:
            return token_ids

        async def placed(work: ExitStack) -> EngineIdentity:
            has_kv = None if like is None else partial(_is_like, like)
            preferred = await self._preferred(model, tenant, has_kv)
            engine = await self._nearest(
                model, tenant, salt_scope, tokens, count=len(token_ids), preferred=preferred
            )
            return await self._at(engine, model, work)

        return await self._where_one_answers(placed, turn)

    async def _where_one_answers(
        self, place: Callable[[ExitStack], Awaitable[EngineIdentity]], turn: ExitStack
    ) -> EngineIdentity:
        """An engine that does not answer is not chosen again, so that the next attempt finds another."""
        for _ in self.directory.engine.names()[1:]:
            with ExitStack() as work:
                try:
                    identity = await place(work)
                except EngineConnectionError:
                    continue
                turn.enter_context(work.pop_all())
                return identity
        return await place(turn)

    async def _placed(self, session: Session, turn: ExitStack) -> EngineIdentity:
        if await self.directory.takes(session.engine, session.model, session.tenant):
            return await self._at(session.engine or "", session.model, turn)
        engine = await self._nearest(
            session.model,
            session.tenant,
            session.salt_scope,
            lambda: self.registry.session_tokens(session.tenant, session.id),
            count=session.token_count,
            preferred=await self._preferred_of(session),
        )
        with ExitStack() as choice:
            # Counted from now on: others are placed while this choice is written down.
            choice.enter_context(self.directory.works(engine))
            settled_engine = await self.registry.settle_session(session, engine, session.engine)
            if settled_engine in {None, engine} or not await self.directory.takes(
                settled_engine, session.model, session.tenant
            ):
                turn.enter_context(choice.pop_all())
                return await self.directory.identity(session.model, engine)
        # Another gateway has placed it meanwhile.
        return await self._at(settled_engine or "", session.model, turn)

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
        preferred: Sequence[Collection[str]],
    ) -> str:
        candidates = await self._candidates(model, tenant, preferred)
        if len(candidates) == 1 or not count:
            return candidates[0]
        chunk_counts = await self.directory.held(model, candidates, tenant, salt_scope, await token_ids())
        # Others may have been placed meanwhile.
        return max(
            await self._candidates(model, tenant, preferred), key=lambda name: chunk_counts.get(name, 0)
        )

    async def _preferred_of(self, session: Session) -> Sequence[Collection[str]]:
        """As :meth:`_preferred`, by the salt of a session's context."""
        if len(await self.directory.candidates(session.model, session.tenant)) < 2:
            return ()
        scope, salt = await self._salt_of(session) if session.token_count else ("", None)
        if salt is None:
            return await self._preferred(session.model, session.tenant, None)
        return await self._preferred(
            session.model,
            session.tenant,
            lambda identity: self.directory.salt(session.tenant, scope, identity) == salt,
        )

    async def _salt_of(self, session: Session) -> tuple[str, str | None]:
        """A salt scope, and the salt in it of the deployment that has the session's KV; None where that is not known."""
        turn = await self.registry.current_turn(session.tenant, session.id)
        if turn is not None and turn.cache_salt is not None:
            return session.salt_scope, turn.cache_salt
        if session.thawed_from is None:
            return session.salt_scope, None
        window = await self.registry.window(session.tenant, session.thawed_from)
        # A thaw that could not be judged left the window's scope.
        return (session.salt_scope, None) if window is None else (window.salt_scope, window.cache_salt)

    async def _preferred(
        self, model: str, tenant: str, has_kv: Callable[[EngineIdentity], bool] | None
    ) -> Sequence[Collection[str]]:
        """The engines that have the KV, then those of the new deployment of an upgrade; the first of which one is free count."""
        upgrade = (await self.registry.upgrades()).get(model)
        tests = [test for test in (has_kv, None if upgrade is None else upgrade.is_to) if test is not None]
        names = await self.directory.candidates(model, tenant) if tests else ()
        if len(names) < 2:
            return ()
        deployments = await self._known(model, names)
        return [{name for name, identity in deployments.items() if test(identity)} for test in tests]

    async def _known(self, model: str, engines: Sequence[str]) -> Mapping[str, EngineIdentity]:
        """What is known of the engines. Others are asked in the background: one that is slow to answer delays only what comes in the first moment."""
        now = asyncio.get_running_loop().time()
        unknown = [(name, model) for name in engines if name not in self.directory.known(model, engines)]
        for key in unknown:
            last = self._asks.get(key)
            if last is None or (last.task.done() and now >= last.begun + _ASK_AGAIN_SECONDS):
                self._asks[key] = _Ask(asyncio.create_task(self._ask(*key)), now)
        asks = [self._asks[key] for key in unknown]
        recent = [each for each in asks if now < each.begun + _ASK_SECONDS and not each.task.done()]
        if recent:
            until = max(each.begun for each in recent) + _ASK_SECONDS
            await asyncio.wait([each.task for each in recent], timeout=until - now)
        return self.directory.known(model, engines)

    async def _ask(self, engine: str, model: str) -> None:
        with suppress(CwmError):
            await self.directory.identity(model, engine)

    async def _candidates(
        self, model: str, tenant: str, preferred: Sequence[Collection[str]]
    ) -> tuple[str, ...]:
        drained = await self.registry.drained_engines()
        # Nothing is waited for from here on until the choice counts as work: others are placed meanwhile.
        candidates = await self.directory.candidates(model, tenant)
        if not candidates:
            await self.directory.identity(model, tenant=tenant)
            raise EngineConnectionError(f"No engine that serves '{model}' answers.", model=model)
        candidates = tuple(name for name in candidates if name not in drained) or candidates
        free = tuple(name for name in candidates if not self.directory.is_full(name))
        if not free:
            raise self.full(model, len(candidates))
        better = (tuple(name for name in free if name in names) for names in preferred)
        return next(filter(None, better), free)

    def full(self, model: str, engines: int) -> ConcurrencyLimitError:
        return ConcurrencyLimitError(
            f"Every engine that serves '{model}' has as many requests as it may.",
            retry_after=_WHEN_ONE_IS_FREE_SECONDS,
            model=model,
            engines=engines,
        )

    async def _unmoved(self, session: Session) -> Session:
        """The session after its move, or after the patience as it is."""
        time = asyncio.get_running_loop().time
        until = time() + self.patience_seconds
        while session.moving_until is not None and session.moving_until > self.clock.now() and time() < until:
            # Nothing tells that a move of another gateway ended.
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
            fresh_session = await self.registry.session(session.tenant, session.id)
            if fresh_session is None:
                break
            session = fresh_session
        return session


def _is_like(one: EngineIdentity, other: EngineIdentity) -> bool:
    return engine_key(one) == engine_key(other)
