from __future__ import annotations

import pytest

from cwm.domain.errors import SessionNotActiveError
from cwm.domain.session import LIVE, TRANSITIONS, SessionState
from tests.contracts.nouns import a_session

_ACTIVE, _FROZEN, _THAWED, _EXPIRED, _DELETED = SessionState


@pytest.mark.parametrize("state", SessionState)
def test_turns_and_freezes_are_for_active_and_thawed_sessions_only(state: SessionState) -> None:
    session = a_session(state=state)
    if state in {_ACTIVE, _THAWED}:
        session.require_live("a turn")
        return
    with pytest.raises(SessionNotActiveError) as refused:
        session.require_live("a turn")
    assert refused.value.code == "CWM-3002"
    assert refused.value.context == {"session_id": "s1", "state": state.value}
    assert "a turn needs an active or thawed session" in refused.value.message


def test_the_refusal_of_a_frozen_session_says_how_to_go_on() -> None:
    with pytest.raises(SessionNotActiveError, match="Thaw its window to go on"):
        a_session(state=_FROZEN).require_live("a freeze")


def test_every_state_says_what_it_may_become() -> None:
    assert set(TRANSITIONS) == set(SessionState)


def test_a_deleted_session_stays_deleted_and_any_other_can_become_it() -> None:
    assert TRANSITIONS[_DELETED] == frozenset()
    assert all(_DELETED in TRANSITIONS[state] for state in SessionState if state is not _DELETED)


def test_only_live_sessions_can_be_frozen() -> None:
    assert {state for state, following in TRANSITIONS.items() if _FROZEN in following} == LIVE


def test_a_session_becomes_active_by_a_turn_after_a_thaw_only() -> None:
    assert {state for state, following in TRANSITIONS.items() if _ACTIVE in following} == {_THAWED}
    assert {state for state, following in TRANSITIONS.items() if _THAWED in following} == {_FROZEN}
    assert {state for state, following in TRANSITIONS.items() if _EXPIRED in following} == LIVE
