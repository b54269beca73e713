"""What holds for all contracts: no statement that they run may leave open whose rows it means."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from sqlalchemy import ClauseElement, Engine, event

import cwm.adapters.sql
from tests.adapters.sql.scoping import unscoped
from tests.contracts.engine_side import EngineSide, in_memory, real

PACKAGE = str(Path(cwm.adapters.sql.__file__).parent)
TESTS = str(Path(__file__).parent.parent)

_found: WeakKeyDictionary[ClauseElement, list[str]] = WeakKeyDictionary()


@pytest.fixture(autouse=True)
def _every_statement_names_its_tenant() -> Iterator[None]:
    event.listen(Engine, "before_execute", _look)
    yield
    event.remove(Engine, "before_execute", _look)


@pytest.fixture(params=["in memory", pytest.param("real", marks=pytest.mark.live)])
async def engine_side(request: pytest.FixtureRequest) -> AsyncIterator[EngineSide]:
    """Of each engine with its cache in turn; the real one is the run's own."""
    opened = in_memory() if request.param == "in memory" else real(request.getfixturevalue("live_engine"))
    async with opened as side:
        yield side


def _look(_connection: Any, statement: Any, *_: Any) -> None:
    if not isinstance(statement, ClauseElement):
        return
    if statement not in _found:
        _found[statement] = unscoped(statement)
    if _found[statement]:
        callers = [code for code in _callers() if code.co_filename.startswith((PACKAGE, TESTS))]
        of_the_test = callers[0].co_filename.startswith(TESTS)
        meant = any(code.co_name.endswith("_of_every_tenant") for code in callers)
        assert meant or of_the_test, f"{callers[0].co_name} leaves open whose {_found[statement]} it means"


def _callers() -> Iterator[CodeType]:
    """Whoever had the statement run, the nearest first."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back
