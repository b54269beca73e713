"""A session's tree against a model: turns that end late, that are given up, whose gateway dies; freezes and deletes."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cwm.adapters.sql import schema
from cwm.adapters.sql.database import Database, open_database
from cwm.domain.prefix import TokenIds
from cwm.domain.turn import TurnQuery, TurnState
from cwm.services.turns.turns import RunningTurn
from tests.services.replicas_of import ANN
from tests.services.turns.talk import AGENT, TITLE, answered, asked
from tests.services.windows_of import Gateway, gateway

T = TypeVar("T")
IDS = st.lists(st.integers(1, 3), min_size=1, max_size=20).map(tuple)
PART = st.floats(0, 1)


class Tree(RuleBasedStateMachine):
    """``ended``: number, context and whether it is the agent's, by turn. ``running``: the same of turns in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.database: Database | None = None
        self.ended: dict[str, tuple[int, TokenIds, bool]] = {}
        self.running: dict[str, tuple[RunningTurn, int, TokenIds, bool]] = {}
        self.crashed: set[str] = set()
        self.windows: dict[str, TokenIds] = {}
        self.asked = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize()
    def begin(self) -> None:
        self.cwm = self.run(self._gateway())

    async def _gateway(self) -> Gateway:
        url = f"sqlite:///{Path(self.folder.name) / 'cwm.db'}"
        await schema.upgrade(url)
        self.database = open_database(url)
        cwm = gateway(self.database)
        await cwm.open_session(ANN, "s1")
        return cwm

    @rule(new=IDS, part=PART, whose=st.booleans(), data=st.data())
    def ask(self, new: TokenIds, part: float, whose: bool, data: st.DataObject) -> None:
        """A prompt that begins with some part of a context that there is."""
        contexts = sorted({context for _, context, _ in self.ended.values()})
        context = data.draw(st.sampled_from(contexts)) if contexts else ()
        prompt = (*context[: round(part * len(context))], *new)
        turn = self.run(asked(self.cwm, profile=AGENT if whose else TITLE))
        self.asked += 1
        assert turn.id is not None
        self.running[turn.id] = (turn, self.asked, prompt, whose)

    @precondition(lambda self: self.running)
    @rule(answer=IDS, data=st.data())
    def end(self, answer: TokenIds, data: st.DataObject) -> None:
        turn_id = data.draw(st.sampled_from(sorted(self.running)))
        turn, number, prompt, whose = self.running.pop(turn_id)
        assert self.run(answered(turn, prompt, answer)) is not None
        self.ended[turn_id] = (number, (*prompt, *answer), whose)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        turn, *_ = self.running.pop(data.draw(st.sampled_from(sorted(self.running))))
        self.run(turn.close())

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """The gateway that awaits the answer dies: nobody ends the turn."""
        turn_id = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[turn_id]
        self.crashed.add(turn_id)

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def freeze(self, data: st.DataObject) -> None:
        turn_id = data.draw(st.sampled_from(sorted(self.ended)))
        name = f"w{self.asked}_{len(self.windows)}_{turn_id[-8:]}"
        if name not in self.windows:
            self.run(self.cwm.freeze(ANN, "s1", name, turn_id=turn_id, canary=False))
            self.windows[name] = self.ended[turn_id][1]

    @precondition(lambda self: self.windows)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.windows)))
        self.run(self.cwm.delete(ANN, name))
        del self.windows[name]

    @invariant()
    def no_turn_is_lost_changed_or_left_over(self) -> None:
        if self.database is None:
            return
        turns = self.run(self.cwm.registry.turns("acme", "s1", TurnQuery(limit=1000)))
        assert {turn.id for turn in turns} == self.ended.keys() | self.running.keys() | self.crashed
        for turn in turns:
            if turn.state is TurnState.ENDED:
                number, context, _ = self.ended[turn.id]
                assert turn.number == number
                assert self.run(self.cwm.registry.turn_tokens(turn)) == context

    @invariant()
    def the_context_is_that_of_the_agents_last_turn(self) -> None:
        if self.database is None:
            return
        agents = [(number, context) for number, context, whose in self.ended.values() if whose]
        if agents:
            assert self.run(self.cwm.registry.session_tokens("acme", "s1")) == max(agents)[1]

    @invariant()
    def windows_hold_what_was_frozen(self) -> None:
        for name, context in self.windows.items():
            window = self.run(self.cwm.registry.window("acme", name))
            assert window is not None
            snapshot = self.run(self.cwm.registry.snapshot("acme", window.snapshot_id))
            assert snapshot.token_ids == context

    def teardown(self) -> None:
        if self.database is not None:
            self.run(self.cwm.settle())
            self.run(self.database.dispose())
        self.loop.close()
        self.folder.cleanup()


def walk(sequences: int, steps: int) -> None:
    run_state_machine_as_test(
        Tree,
        settings=settings(
            max_examples=sequences,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_tree_is_what_a_model_says_it_is() -> None:
    walk(10, 30)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_tree_is_what_a_model_says_it_is_in_ten_thousand_steps() -> None:
    walk(100, 100)
