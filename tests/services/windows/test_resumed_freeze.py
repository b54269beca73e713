"""A freeze that is gone on with, and an engine that goes away again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.domain.engine import EngineIdentity
from cwm.domain.errors import EngineConnectionError
from cwm.domain.intent import Intent
from cwm.domain.window import Durability
from cwm.ports.kv_tier import PrefixKey
from cwm.services.windows.freeze import Freeze
from tests.contracts.nouns import IDENTITY, IDS, a_session, a_window


@dataclass
class SameEngine:
    async def identity(self, model: str | None = None) -> EngineIdentity:
        return IDENTITY


@dataclass
class AwayTier:
    async def pin(self, prefix: PrefixKey) -> int:
        raise EngineConnectionError("LMCache does not answer.")


@dataclass
class Left:
    intents: list[Intent] = field(default_factory=list)

    async def leave(self, owed: Intent | None) -> None:
        self.intents += [owed] if owed is not None else []


async def test_a_freeze_that_cannot_be_gone_on_with_is_left_to_whoever_looks_next(
    registry: SqlRegistry,
) -> None:
    await registry.add_session(a_session(token_count=len(IDS)), IDS)
    intent = await registry.begin_freeze(a_window(pinned=True), IDS, 0)
    left, nothing = Left(), cast("Any", None)
    freeze = Freeze(
        registry,
        cast("Any", AwayTier()),
        cast("Any", SameEngine()),
        nothing,
        nothing,
        nothing,
        SystemClock(),
        nothing,
        cast("Any", left),
        nothing,
    )
    with pytest.raises(EngineConnectionError):
        await freeze.resume(intent)
    assert left.intents == [intent]
    window = await registry.window("acme", "w1")
    assert window is not None
    assert window.durability is Durability.PENDING
