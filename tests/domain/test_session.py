from __future__ import annotations

import pytest

from cwm.domain.errors import SessionNotActiveError
from cwm.domain.session import SessionState
from tests.contracts.nouns import a_session

_ACTIVE, _FROZEN, _THAWED, *_ = SessionState


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
