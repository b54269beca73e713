"""Which turn a freeze takes while another one ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from cwm.adapters.sql.database import Database
from cwm.ports.registry import Registry
from cwm.services.turns.reading.current import Current
from tests.services.replicas_of import ANN
from tests.services.turns.talk import answered, asked, took, user
from tests.services.windows_of import Gateway, gateway

FIRST, SECOND = tuple(range(100, 140)), tuple(range(100, 180))


class EndsMeanwhile:
    """A registry in which something ends right after the first of the reads for the current turn."""

    def __init__(self, registry: Registry, ends: Callable[[], Awaitable[Any]]) -> None:
        self._registry = registry
        self._ends: Callable[[], Awaitable[Any]] | None = ends

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)

    async def turns(self, *arguments: Any) -> Any:
        return await self._and_then(self._registry.turns(*arguments))

    async def current_turn(self, *arguments: Any) -> Any:
        return await self._and_then(self._registry.current_turn(*arguments))

    async def _and_then(self, read: Awaitable[Any]) -> Any:
        result, ends, self._ends = await read, self._ends, None
        if ends is not None:
            await ends()
        return result


@pytest.fixture
async def cwm(sqlite: Database) -> Gateway:
    running = gateway(sqlite)
    await running.open_session(ANN, "s1")
    return running


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_turn_that_ends_while_the_current_one_is_looked_for_is_it(
    cwm: Gateway, *, is_first: bool
) -> None:
    if not is_first:
        await took(cwm, FIRST[:20], messages=[user("Hello.")])
    turn = await asked(cwm, [user("Hello."), user("On.")])
    session = await cwm.registry.session("acme", "s1")
    assert session is not None
    registry = EndsMeanwhile(cwm.registry, lambda: answered(turn, SECOND, (7, 8)))
    current = await Current(cast("Registry", registry), cwm.replicas)(session)
    assert current is not None
    assert current.id == turn.id
