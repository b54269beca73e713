"""What retention does with many at once, of which some fail."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import pytest

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.domain.errors import CwmError, EngineConnectionError, StorageWriteError
from cwm.domain.names import require_window_name
from cwm.domain.principal import Principal
from cwm.domain.session import Session
from cwm.domain.upkeep import Outcome
from cwm.domain.window import Window
from cwm.services.turns.turns import Turns
from cwm.services.upkeep.retention import Retain, RetentionPolicy
from tests.contracts.nouns import IDS, LATER, NOW, a_session, freeze, stored


@dataclass
class Failing:
    """Does nothing but fail for all that has ``bad`` in its name."""

    error: CwmError = field(default_factory=lambda: StorageWriteError("Never."))
    done: list[str] = field(default_factory=list)

    async def now(self, what: Session | Window) -> None:
        self._do(what.name if isinstance(what, Window) else what.id, what)

    async def freeze(self, who: Principal, session_id: str, name: str, *_: Any, **__: Any) -> None:
        require_window_name(name)
        self._do(session_id, name)

    def _do(self, name: str, what: Any) -> None:
        if "bad" in name:
            raise self.error
        self.done.append(what if isinstance(what, str) else name)


def retain(registry: SqlRegistry, does: Failing, *, auto_freeze: bool = True) -> Retain:
    doing, clock = cast("Any", does), SystemClock()
    policy = RetentionPolicy(session_ttl=60.0, session_kept=0.0, auto_freeze=auto_freeze)
    turns = Turns(registry, cast("Any", None), clock)
    return Retain(registry, doing.freeze, doing, doing, turns, clock, policy)


@pytest.fixture(autouse=True)
def _two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cwm.services.upkeep.retention._AT_ONCE", 2)


async def test_windows_that_cannot_be_deleted_do_not_stand_in_the_way_of_others(
    registry: SqlRegistry,
) -> None:
    for number, name in enumerate(("bad1", "bad2", "w3", "w4", "w5")):
        await freeze(registry, name, "a", expires_at=LATER + timedelta(seconds=number))
    does = Failing()
    look = retain(registry, does)
    for _ in range(2):
        await look._windows(dry_run=False)
    assert does.done == ["w3", "w4"]


async def test_sessions_that_cannot_be_frozen_do_not_stand_in_the_way_of_others(
    registry: SqlRegistry,
) -> None:
    for number, name in enumerate(("bad1", "bad2", "s3")):
        at = NOW + timedelta(seconds=number)
        await registry.add_session(a_session(name, token_count=len(IDS), updated_at=at), IDS)
    does = Failing()
    look = retain(registry, does)
    for _ in range(2):
        await look(dry_run=False)
    assert len(does.done) == 1


async def test_a_window_that_changed_while_it_was_being_deleted_is_looked_at_again_by_the_next_look(
    registry: SqlRegistry,
) -> None:
    window = await freeze(registry, "w", "a", expires_at=LATER)

    class Late(Failing):
        async def now(self, what: Session | Window) -> None:
            assert isinstance(what, Window)
            if what == window:
                scope, salt = what.salt_scope, "another"
                again = await registry.store_again(what, scope, salt, what.identity, NOW, pinned=False)
                assert again is not None
                await registry.finish_freeze(again[0], stored("a"), LATER + timedelta(seconds=1))
            await registry.remove_window(what, LATER)

    look = retain(registry, Late())
    (postponed,) = await look._windows(dry_run=False)
    assert (postponed.outcome, "changed meanwhile" in postponed.detail) == (Outcome.POSTPONED, True)
    (done,) = await look._windows(dry_run=False)
    assert done.outcome is Outcome.DONE
    assert await registry.window("acme", "w") is None


async def test_nobody_is_passed_over_because_the_engine_was_away(registry: SqlRegistry) -> None:
    await registry.add_session(a_session("bad", token_count=len(IDS)), IDS)
    does = Failing(EngineConnectionError("Away."))
    look = retain(registry, does)
    for _ in range(2):
        (step,) = await look(dry_run=False)
        assert step.detail == "Away."


async def test_what_is_frozen_of_two_sessions_never_has_one_name(registry: SqlRegistry) -> None:
    """Alike in their first forty characters, or one after the other of the same id."""
    does = Failing()
    look = retain(registry, does)
    ids = [f"{'s' * 63}{last}" for last in "ab"]
    sessions = [*map(a_session, ids), a_session(ids[0], created_at=LATER)]
    for session in sessions:
        await look._freeze(session, dry_run=False)
    assert len(set(does.done)) == len(does.done) == len(sessions)


@pytest.mark.parametrize("auto_freeze", [False, True])
async def test_a_session_does_not_expire_in_the_middle_of_a_turn(
    registry: SqlRegistry, *, auto_freeze: bool
) -> None:
    await registry.add_session(a_session(token_count=len(IDS)), IDS)
    does = Failing()
    look = retain(registry, does, auto_freeze=auto_freeze)
    with look.turns.begin(Principal("acme", "ann"), "s1"):
        assert await look(dry_run=False) == []
    assert (await registry.session("acme", "s1")) == a_session(token_count=len(IDS))
    assert len(await look(dry_run=False)) == 1


async def test_a_session_that_another_gateway_goes_on_with_is_not_frozen_for_having_been_idle(
    registry: SqlRegistry,
) -> None:
    """It was idle when the look began, which takes long where there is much to freeze."""
    idle = a_session(token_count=len(IDS))
    await registry.add_session(idle, IDS)
    assert await registry.touch_session(idle, LATER)
    does = Failing()
    look = retain(registry, does)
    assert await look._expire(idle, dry_run=False) == []
    assert does.done == []
