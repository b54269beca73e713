"""Which engine serves a session: the one that has its KV, until that is gone."""

from __future__ import annotations

from dataclasses import dataclass

from cwm.domain.engine import EngineIdentity
from cwm.domain.errors import EngineConnectionError
from cwm.domain.session import Session
from cwm.ports.registry import Registry
from cwm.services.engines.directory import EngineDirectory


@dataclass(frozen=True, slots=True)
class Place:
    registry: Registry
    directory: EngineDirectory

    async def __call__(self, session: Session) -> EngineIdentity:
        """The identity of the session's model on the engine that takes its next turn.

        A session stays where it is while that engine is there; another one goes to the engine with the least work. CWM-1003 if no
        engine serves the model, CWM-5001 if those that do are gone.
        """
        if len(self.directory.engine.names()) == 1:
            return await self.directory.identity(session.model)
        candidates = await self.directory.candidates(session.model)
        if session.engine in candidates:
            return await self.directory.identity(session.model, session.engine or "")
        if not candidates:
            await self.directory.identity(session.model)
            raise EngineConnectionError(
                f"No engine that serves '{session.model}' answers.", model=session.model
            )
        settled = await self.registry.settle_session(session, candidates[0], session.engine)
        if settled not in candidates:
            # Another gateway has placed it meanwhile, on an engine that this one does not see.
            return await self.directory.identity(session.model, candidates[0])
        return await self.directory.identity(session.model, settled or candidates[0])
