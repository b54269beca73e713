"""Users of one tenant: whatever one may not see is answered like what there is not, and what is read of another's is audited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, TypeAlias

import pytest

from cwm.domain.access import EVERY, granted
from cwm.domain.autosave import AutosavePolicies, AutosavePolicy
from cwm.domain.errors import (
    CwmError,
    InvalidParameterError,
    SecurityError,
    SessionAlreadyExistsError,
    WindowAlreadyExistsError,
    WindowInUseError,
)
from cwm.domain.principal import Principal
from cwm.domain.session import SessionQuery
from cwm.domain.turn import TurnSource
from cwm.domain.visibility import PRIVATE
from cwm.domain.window import WindowQuery
from cwm.services.turns.reading.compare import Compare
from cwm.services.turns.sending.generate import TurnInput
from cwm.services.upkeep.retention import RetentionPolicy
from tests.services.replicas_of import ANN, BOB
from tests.services.windows_of import Gateway, Ticking, gateway

pytestmark = pytest.mark.slow

ADMIN: Final = Principal("acme", "root", EVERY)
AUDITOR: Final = Principal("acme", "eve", granted(["windows:read", "others:read"]))
DESIGNER: Final = replace(ANN, workspaces=frozenset({"design"}))
OTHER_DESIGNER: Final = replace(BOB, workspaces=frozenset({"design"}))

Ask: TypeAlias = Callable[[Gateway, Principal, str, str, str], Awaitable[Any]]
"""With the names of a session, a window and a turn."""


@pytest.fixture
async def cwm(sqlite: Any) -> AsyncIterator[Gateway]:
    """Where sessions are private."""
    running = gateway(sqlite, visibility=PRIVATE)
    yield running
    await running.settle()


@pytest.fixture
async def turn(cwm: Gateway) -> str:
    """Ann's, in her private session ``s1``; her private window ``w1`` has the same context."""
    await cwm.session("s1")
    await cwm.freeze(ANN, "s1", "w1", keep_session=True, visibility=PRIVATE)
    current = await cwm.registry.current_turn("acme", "s1")
    assert current is not None
    return current.id


def _compare(cwm: Gateway) -> Compare:
    return Compare(cwm.history, cwm.directory, cwm.thaw.planner)


READS: Final[dict[str, Ask]] = {
    "session_status": lambda c, p, s, w, t: c.browse.session(p, s),
    "window_status": lambda c, p, s, w, t: c.browse.window(p, w),
    "log of a session": lambda c, p, s, w, t: c.history.log(p, TurnSource(session_id=s)),
    "log of a window": lambda c, p, s, w, t: c.history.log(p, TurnSource(window_name=w)),
    "show a session": lambda c, p, s, w, t: c.history.show(p, TurnSource(session_id=s), tokens=True),
    "show a window": lambda c, p, s, w, t: c.history.show(p, TurnSource(window_name=w)),
    "show a turn": lambda c, p, s, w, t: c.history.show(p, TurnSource(turn_id=t)),
    "diff": lambda c, p, s, w, t: _compare(c)(p, TurnSource(turn_id=t), TurnSource(window_name=w)),
}
COPIES: Final[dict[str, Ask]] = {
    "thaw": lambda c, p, s, w, t: c.thaw(p, w, "mine"),
    "clone": lambda c, p, s, w, t: c.clone(p, w, "mine"),
    "branch": lambda c, p, s, w, t: c.branches.open(p, t, "mine"),
}
CHANGES: Final[dict[str, Ask]] = {
    "generate": lambda c, p, s, w, t: c.generate(p, s, TurnInput(text="hey", max_tokens=1)),
    "freeze": lambda c, p, s, w, t: c.freeze(p, s, "mine"),
    "freeze a turn": lambda c, p, s, w, t: c.freeze(p, s, "mine", turn_id=t),
    "revert": lambda c, p, s, w, t: c.branches.revert(p, t),
    "delete a turn": lambda c, p, s, w, t: c.branches.remove(p, t),
    "unfreeze": lambda c, p, s, w, t: c.branches.unfreeze(p, s),
}
DELETIONS: Final[dict[str, Ask]] = {
    "delete a session": lambda c, p, s, w, t: c.end_session(p, s),
    "delete a window": lambda c, p, s, w, t: c.delete(p, w, force=True),
}
SHARES: Final[dict[str, Ask]] = {
    "share a session": lambda c, p, s, w, t: c.share.session(p, s, "tenant"),
    "share a window": lambda c, p, s, w, t: c.share.window(p, w, "tenant"),
}


async def refusal(asked: Awaitable[Any]) -> tuple[str, str]:
    with pytest.raises(CwmError) as refused:
        await asked
    return refused.value.code, refused.value.message


async def is_answered_like_nothing(cwm: Gateway, who: Principal, ask: Ask, turn: str) -> None:
    code, message = await refusal(ask(cwm, who, "s1", "w1", turn))
    unknown = await refusal(ask(cwm, who, "nobody", "nothing", "turn_no"))
    for name, other in (("s1", "nobody"), ("w1", "nothing"), (turn, "turn_no")):
        message = message.replace(f"'{name}'", f"'{other}'")
    assert (code, message) == unknown
    assert code in {"CWM-2001", "CWM-2002", "CWM-2007"}


@pytest.mark.parametrize("name", READS | COPIES | CHANGES | DELETIONS | SHARES)
async def test_what_is_anothers_is_answered_like_what_there_is_not(
    cwm: Gateway, turn: str, name: str
) -> None:
    ask = (READS | COPIES | CHANGES | DELETIONS | SHARES)[name]
    before = await cwm.registry.session("acme", "s1"), await cwm.registry.window("acme", "w1")
    await is_answered_like_nothing(cwm, BOB, ask, turn)
    assert (await cwm.registry.session("acme", "s1"), await cwm.registry.window("acme", "w1")) == before
    assert await cwm.registry.window("acme", "mine") is None
    assert await cwm.registry.session("acme", "mine") is None


@pytest.mark.parametrize("name", READS | COPIES | {"generate": CHANGES["generate"]} | DELETIONS)
async def test_members_of_a_workspace_do_all_with_what_is_its_own(cwm: Gateway, turn: str, name: str) -> None:
    await cwm.share.session(DESIGNER, "s1", "workspace:design")
    await cwm.share.window(DESIGNER, "w1", "workspace:design")
    ask = (READS | COPIES | CHANGES | DELETIONS)[name]
    await is_answered_like_nothing(cwm, BOB, ask, turn)
    await ask(cwm, OTHER_DESIGNER, "s1", "w1", turn)


async def test_an_administrator_sees_sizes_and_states_and_nothing_of_what_was_said(
    cwm: Gateway, turn: str
) -> None:
    await cwm.open_session(ANN, "noted", metadata={"about": "a secret"})
    await cwm.freeze(ANN, "s1", "told", "a secret", ["secret"], keep_session=True, visibility=PRIVATE)
    shown = (await cwm.browse.window(ADMIN, "told")).window
    assert (shown.token_count > 0, shown.owner, shown.description, shown.tags) == (True, "ann", "", ())
    assert (await cwm.browse.session(ADMIN, "noted")).session.user_metadata == {}
    listed = await cwm.browse.windows(ADMIN, WindowQuery())
    assert [(window.name, window.description) for window in listed.windows] == [("told", ""), ("w1", "")]
    assert (await cwm.browse.windows(ADMIN, WindowQuery(search="secret"))).total == 0
    assert (await cwm.browse.windows(ADMIN, WindowQuery(tags=("secret",)))).total == 0
    assert len((await cwm.browse.sessions(ADMIN, SessionQuery())).sessions) == 2
    for ask in [*list(READS.values())[2:], *COPIES.values(), *CHANGES.values()]:
        await is_answered_like_nothing(cwm, ADMIN, ask, turn)
    for ask in SHARES.values():
        with pytest.raises(SecurityError, match="its owner"):
            await ask(cwm, ADMIN, "s1", "w1", turn)
    for ask in DELETIONS.values():
        await ask(cwm, ADMIN, "s1", "w1", turn)


async def test_contents_of_others_are_read_by_a_scope_of_its_own_and_each_read_is_audited(
    cwm: Gateway, turn: str
) -> None:
    for ask in list(READS.values())[2:]:
        before = len(await reads_of_others(cwm))
        await ask(cwm, AUDITOR, "s1", "w1", turn)
        reads = await reads_of_others(cwm)
        assert len(reads) > before
        assert reads[0] == ("eve", "ann")
    assert (await cwm.browse.windows(AUDITOR, WindowQuery(search="w1"))).total == 1
    for ask in [*CHANGES.values(), *DELETIONS.values()]:
        await is_answered_like_nothing(cwm, AUDITOR, ask, turn)
    assert (await cwm.thaw(AUDITOR, "w1", "copy")).session.circle == "owner:eve"


async def test_reading_ones_own_is_not_audited(cwm: Gateway, turn: str) -> None:
    for ask in READS.values():
        await ask(cwm, ANN, "s1", "w1", turn)
    assert await reads_of_others(cwm) == []


async def reads_of_others(cwm: Gateway) -> list[tuple[str, str]]:
    """Who read whose, the last first."""
    await cwm.audit.settle()
    events = await cwm.audit.events("acme", 100)
    return [(e.subject, e.details["owner"]) for e in events if e.event == "security.shared_access"]


async def test_lists_and_their_totals_are_of_what_one_sees(cwm: Gateway, turn: str) -> None:
    await cwm.freeze(ANN, "s1", "everybodys", keep_session=True)
    await cwm.open_session(BOB, "bobs")
    assert [each.id for each in (await cwm.browse.sessions(BOB, SessionQuery())).sessions] == ["bobs"]
    page = await cwm.browse.windows(BOB, WindowQuery())
    assert ([window.name for window in page.windows], page.total) == (["everybodys"], 1)
    assert (await cwm.browse.windows(ANN, WindowQuery())).total == 2
    private = await cwm.browse.windows(ANN, WindowQuery(), visibility="private")
    assert ([window.name for window in private.windows], private.total) == (["w1"], 1)
    assert (await cwm.browse.windows(BOB, WindowQuery(), visibility="private")).total == 0
    with pytest.raises(InvalidParameterError):
        await cwm.browse.sessions(BOB, SessionQuery(), visibility="workspace:design")


async def test_a_cursor_goes_no_further_once_its_reader_left_a_workspace(cwm: Gateway, turn: str) -> None:
    await cwm.clone(ANN, "w1", "w2")
    cursor = (await cwm.browse.windows(DESIGNER, WindowQuery(limit=1))).next_cursor
    assert cursor is not None
    assert (await cwm.browse.windows(DESIGNER, WindowQuery(limit=1), cursor)).windows[0].name == "w1"
    with pytest.raises(InvalidParameterError):
        await cwm.browse.windows(ANN, WindowQuery(limit=1), cursor)


async def test_ids_and_names_that_are_anothers_are_taken_and_tell_nothing_else(
    cwm: Gateway, turn: str
) -> None:
    with pytest.raises(SessionAlreadyExistsError) as taken:
        await cwm.open_session(BOB, "s1")
    assert taken.value.context == {"session_id": "s1"}
    await cwm.session("of-ann")
    await cwm.share.session(ANN, "of-ann", "tenant")
    with pytest.raises(WindowAlreadyExistsError) as named:
        await cwm.freeze(BOB, "of-ann", "w1")
    assert named.value.context == {"window_name": "w1"}


async def test_a_window_that_another_sees_shows_the_turns_that_it_came_from_and_no_others(
    cwm: Gateway, turn: str
) -> None:
    await cwm.says("s1", " and later")
    await cwm.share.window(ANN, "w1", "tenant")
    own = await cwm.history.log(ANN, TurnSource(window_name="w1"))
    others = await cwm.history.log(BOB, TurnSource(window_name="w1"))
    assert [each.number for each in own.turns] == [2, 1]
    assert [each.id for each in others.turns] == [others.current_turn] == [turn]
    assert (await cwm.history.show(BOB, TurnSource(window_name="w1"))).turn.id == turn
    await is_answered_like_nothing(cwm, BOB, READS["show a turn"], turn)


async def test_copies_are_their_makers_and_not_more_visible_than_the_source(cwm: Gateway, turn: str) -> None:
    await cwm.clone(ANN, "w1", "w2")
    assert await owner_and_circle(cwm, window="w2") == ("ann", "owner:ann")
    await cwm.clone(ANN, "w1", "w3", visibility="tenant")
    assert (await cwm.clone(BOB, "w3", "w4")).owner == "bob"
    assert await owner_and_circle(cwm, window="w4") == ("bob", "tenant")
    assert (await cwm.thaw(BOB, "w3", "of-bob")).session.circle == "owner:bob"
    assert (await cwm.thaw(BOB, "w3", "shown", visibility="tenant")).session.circle == "tenant"
    await cwm.share.window(DESIGNER, "w1", "workspace:design")
    with pytest.raises(InvalidParameterError, match="only its owner"):
        await cwm.clone(OTHER_DESIGNER, "w1", "w5", visibility="tenant")
    assert (await cwm.branches.open(ANN, turn, "b1", "tenant")).circle == "tenant"


async def owner_and_circle(cwm: Gateway, window: str) -> tuple[str, str]:
    found = await cwm.registry.window("acme", window)
    assert found is not None
    return found.owner, found.circle


async def test_a_freeze_of_ones_private_session_is_as_visible_as_windows_are(cwm: Gateway, turn: str) -> None:
    await cwm.freeze(ANN, "s1", "w2", keep_session=True)
    assert await owner_and_circle(cwm, window="w2") == ("ann", "tenant")
    await cwm.share.session(DESIGNER, "s1", "workspace:design")
    await cwm.freeze(OTHER_DESIGNER, "s1", "w3", keep_session=True)
    assert await owner_and_circle(cwm, window="w3") == ("bob", "workspace:design")


async def test_automatic_windows_are_as_visible_as_their_session_also_once_it_is_shared(
    sqlite: Any,
) -> None:
    policies = AutosavePolicies(AutosavePolicy(1, None, 3))
    cwm = gateway(sqlite, visibility=PRIVATE, autosave=policies, clock=Ticking())
    await cwm.session("s1")
    assert cwm.reconcile.autosave is not None
    await cwm.reconcile.autosave(dry_run=False)
    await cwm.freeze.settle()
    (window,) = await cwm.registry.automatic_windows("acme", "s1")
    assert (window.owner, window.circle) == ("ann", "owner:ann")
    await cwm.share.session(ANN, "s1", "tenant")
    (window,) = await cwm.registry.automatic_windows("acme", "s1")
    assert window.circle == "tenant"
    await cwm.settle()


async def test_windows_and_sessions_of_others_keep_a_window_without_being_named(
    cwm: Gateway, turn: str
) -> None:
    await cwm.share.window(ANN, "w1", "tenant")
    await cwm.thaw(BOB, "w1", "secret-project")
    with pytest.raises(WindowInUseError) as refused:
        await cwm.delete(ANN, "w1")
    assert "1 of others" in refused.value.message
    assert "secret" not in f"{refused.value.message}{refused.value.context}"
    assert (await cwm.delete(BOB, "w1", force=True)).session is None


async def test_nobody_waits_for_a_turn_of_a_session_that_it_does_not_see(cwm: Gateway, turn: str) -> None:
    async with cwm.turns.exclusive(ANN, "s1"):
        await is_answered_like_nothing(cwm, BOB, CHANGES["generate"], turn)


async def test_an_idle_session_is_frozen_for_its_owner_and_as_visible_as_it_was(sqlite: Any) -> None:
    policy = RetentionPolicy(session_ttl=0.001, session_kept=0, auto_freeze=True)
    cwm = gateway(sqlite, visibility=PRIVATE, policy=policy)
    await cwm.session("s1")
    await cwm.share.session(DESIGNER, "s1", "workspace:design")
    (step,) = await cwm.retain(dry_run=False)
    window = step.detail.removeprefix("as window ")
    assert await owner_and_circle(cwm, window=window) == ("ann", "workspace:design")
    await cwm.settle()
