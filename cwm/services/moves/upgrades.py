"""Upgrades: an operator says which deployment of a model is the new one, and sees how far its windows are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cwm.domain.engine import EngineIdentity
from cwm.domain.errors import EngineIncompatibleError, InvalidParameterError
from cwm.domain.operators import Operators
from cwm.domain.principal import Principal
from cwm.domain.upgrade import Upgrade, WindowCounts
from cwm.ports.clock import Clock
from cwm.ports.registry import Registry
from cwm.services.audit.journal import Journal
from cwm.services.engines.directory import EngineDirectory

_NONE: Final = WindowCounts(0, 0)


@dataclass(frozen=True, slots=True)
class Upgraded:
    """How far the upgrade of ``model`` is. ``deployment`` and ``since`` are None, and no window is counted, without one.

    ``engines``: those that are there, with the deployment of each; empty where nobody asked them.
    """

    model: str
    engines: Mapping[str, str]
    deployment: str | None = None
    since: datetime | None = None
    windows: WindowCounts = _NONE


@dataclass(frozen=True, slots=True)
class Upgrades:
    """For who runs the gateway: an upgrade is of a model for all tenants."""

    registry: Registry
    directory: EngineDirectory
    operators: Operators
    journal: Journal
    clock: Clock

    async def under_way(self, principal: Principal) -> list[Upgraded]:
        """How far each model's upgrade is, by the model's name; none for who does not run the gateway. CWM-4002."""
        if not self.operators.have(principal):
            return []
        return [
            Upgraded(
                model,
                {},
                upgrade.identity.fingerprint,
                upgrade.since,
                await self.registry.upgraded_windows_of_every_tenant(upgrade),
            )
            for model, upgrade in sorted((await self.registry.upgrades()).items())
        ]

    async def show(self, principal: Principal, model: str) -> Upgraded:
        """CWM-1003 for a model that no engine serves and that is not upgraded; 4002; 9002."""
        self.operators.require(principal)
        upgrade = (await self.registry.upgrades()).get(model)
        deployments = await self._deployments(model, any_state=upgrade is not None)
        engines = {name: identity.fingerprint for name, identity in deployments.items()}
        if upgrade is None:
            return Upgraded(model, engines)
        windows = await self.registry.upgraded_windows_of_every_tenant(upgrade)
        return Upgraded(model, engines, upgrade.identity.fingerprint, upgrade.since, windows)

    async def begin(self, principal: Principal, model: str, to: str) -> Upgraded:
        """Send new sessions of ``model`` to the deployment ``to``, or to that of the engine ``to``, and have its windows frozen there again.

        It may be repeated, and takes the place of an earlier upgrade of the model. CWM-1003 for a model, an engine or a deployment that is not
        there; CWM-3011 for a router; 4001, 4002, 9002.
        """
        async with self.journal.entry(principal, "engine_upgrade") as details:
            details.update(model=model)
            self.operators.require(principal)
            identity = await self._named(model, to)
            details.update(deployment=identity.fingerprint, engine=identity.engine)
            await self.registry.begin_upgrade(Upgrade(model, identity, self.clock.now(), principal))
        return await self.show(principal, model)

    async def end(self, principal: Principal, model: str) -> Upgraded:
        """Prefer no deployment of the model any more. Windows that were frozen again stay so. CWM-1003, 4001, 4002, 9002."""
        async with self.journal.entry(principal, "engine_upgrade_end") as details:
            details.update(model=model)
            self.operators.require(principal)
            if model not in await self.registry.upgrades():
                await self._deployments(model)
            await self.registry.end_upgrade(model)
        return Upgraded(
            model,
            {
                name: each.fingerprint
                for name, each in (await self._deployments(model, any_state=True)).items()
            },
        )

    async def _named(self, model: str, to: str) -> EngineIdentity:
        """The deployment ``to``, or that of the engine ``to``. CWM-1003, 3011."""
        deployments = await self._deployments(model)
        identities = (each for each in deployments.values() if each.fingerprint == to)
        identity = deployments.get(to) or next(identities, None)
        if identity is None:
            raise InvalidParameterError(
                f"'{to}' is no engine that serves '{model}' and answers, and no deployment of one.",
                field="to",
                deployments={name: each.fingerprint for name, each in deployments.items()},
            )
        if self.directory.is_router(identity.engine):
            raise EngineIncompatibleError(
                f"At '{identity.engine}' a router chooses the engine: nothing can be upgraded to one of them.",
                engine=identity.engine,
            )
        return identity

    async def _deployments(self, model: str, *, any_state: bool = False) -> Mapping[str, EngineIdentity]:
        """By the names of engines, in their order. CWM-1003 if nobody serves the model, unless ``any_state``."""
        deployments = dict(sorted((await self.directory.deployments(model, "")).items()))
        if not deployments and not any_state:
            await self.directory.identity(model)
        return deployments
