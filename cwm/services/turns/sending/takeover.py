"""Takeover: an equal engine does what one that is gone would have done."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from cwm.domain.engine import EngineIdentity
from cwm.domain.errors import CwmError
from cwm.domain.principal import Principal
from cwm.ports.registry import Registry
from cwm.services.engines.directory import EngineDirectory
from cwm.services.turns.asking.outbound import Outbound


@dataclass(frozen=True, slots=True)
class Takeover:
    registry: Registry
    directory: EngineDirectory

    async def __call__(
        self, principal: Principal, outbound: Outbound, lost_engines: Sequence[str]
    ) -> EngineIdentity | None:
        """An engine that does what ``lost_engines`` would have done, and serves the session from now on; None if there is no equal one."""
        identity, session, directory = outbound.identity, outbound.session, self.directory
        if identity is None or directory.is_one or directory.is_router(lost_engines[-1]):
            return None
        directory.lose(lost_engines[-1])
        drained = await self.registry.drained_engines()
        names = await directory.candidates(identity.model, principal.tenant)
        for name in sorted(names, key=lambda name: (name in drained, directory.is_full(name))):
            if name in lost_engines or directory.is_router(name) or not await directory.answers(name):
                continue
            with suppress(CwmError):
                other = await directory.identity(identity.model, name)
                if other == identity:
                    if session is not None:
                        await self.registry.settle_session(session, name, lost_engines[-1])
                    return other
        return None
