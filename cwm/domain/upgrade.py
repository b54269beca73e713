"""Upgrades: which deployment of a model is the new one, as an operator said."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from cwm.domain.engine import EngineIdentity, engine_key
from cwm.domain.principal import Principal


@dataclass(frozen=True, slots=True)
class Upgrade:
    """``model`` goes to the deployment of ``identity``: new sessions go there, and its windows are frozen there again.

    ``begun_by`` is None for one that a gateway of an older version recorded.
    """

    model: str
    identity: EngineIdentity
    since: datetime
    begun_by: Principal | None = None

    def is_to(self, identity: EngineIdentity) -> bool:
        """Whether an engine is of the new deployment."""
        return engine_key(identity) == engine_key(self.identity)


@dataclass(frozen=True, slots=True)
class WindowCounts:
    """Guaranteed windows of one model: those frozen by the new deployment, and those ``left`` for which another one did it."""

    done: int
    left: int
