"""A session's tree against a model: turns that end late, that are given up, whose gateway dies; freezes and deletes."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

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
from sqlalchemy import Connection, delete, func, select

from cwm.adapters.sql.database import Database, open_database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.sql.tables import metadata
from cwm.adapters.sql.tables.turns import turn_contents, turns
from cwm.domain.autosave import AutosavePolicies, AutosavePolicy
from cwm.domain.prefix import TokenIds
from cwm.domain.turn import Message, Turn, TurnQuery, TurnState
from cwm.domain.upkeep import Step, StepOutcome
from cwm.services.turns.reading.branches import Branches
from cwm.services.turns.recording.turns import RunningTurn
from tests.fakes.engine import FakeEngine
from tests.fakes.kv_tier import FakeKvTier
from tests.services.replicas_of import ANN
from tests.services.turns.talk import AGENT, TITLE, answered, asked, assistant, user
from tests.services.windows_of import Gateway, Ticking, gateway

pytestmark = pytest.mark.slow

T = TypeVar("T")
IDS = st.lists(st.integers(1, 3), min_size=1, max_size=20).map(tuple)
PART = st.floats(0, 1)
WHERE = st.integers(0, 1)


@dataclass(frozen=True, slots=True)
class Ended:
    """``whose``: whether it is the agent's."""

    number: int
    context: TokenIds
    whose: bool
    messages: list[Message]


@dataclass(frozen=True, slots=True)
class Running:
    """``holder``: the gateway that awaits its answer."""

    turn: RunningTurn
    number: int
    prompt: TokenIds
    whose: bool
    question: Message
    holder: str


class Tree(RuleBasedStateMachine):
    """Of one gateway on SQLite. ``crashed``: turns in flight whose gateway is gone; ``windows`` and ``tags``: of which turns, by name."""

    migrated: ClassVar[Path]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.database: Database | None = None
        self.gateways: list[Gateway] = []
        self.ended: dict[str, Ended] = {}
        self.running: dict[str, Running] = {}
        self.crashed: set[str] = set()
        self.windows: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.asked = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def at(self, where: int) -> Gateway:
        return self.gateways[where % len(self.gateways)]

    @property
    def registry(self) -> SqlRegistry:
        return self.gateways[0].registry

    @initialize()
    def begin(self) -> None:
        self.gateways = self.run(self._gateways())
        self.run(self.gateways[0].open_session(ANN, "s1"))

    async def _gateways(self) -> list[Gateway]:
        path = shutil.copy(self.migrated, Path(self.folder.name) / "cwm.db")
        self.database = open_database(f"sqlite:///{path}")
        return [gateway(self.database)]

    @rule(new=IDS, part=PART, whose=st.booleans(), where=WHERE, data=st.data())
    def ask(self, new: TokenIds, part: float, whose: bool, where: int, data: st.DataObject) -> None:
        """A prompt that begins with some part of a context that there is."""
        contexts = sorted({turn.context for turn in self.ended.values()})
        context = data.draw(st.sampled_from(contexts)) if contexts else ()
        prompt = (*context[: round(part * len(context))], *new)
        cwm, question = self.at(where), user(str(prompt))
        turn = self.run(asked(cwm, [question], profile=AGENT if whose else TITLE))
        self.asked += 1
        assert turn.id is not None
        self.running[turn.id] = Running(turn, self.asked, prompt, whose, question, cwm.replicas.me)

    @precondition(lambda self: self.running)
    @rule(answer=IDS, data=st.data())
    def end(self, answer: TokenIds, data: st.DataObject) -> None:
        turn_id = data.draw(st.sampled_from(list(self.running)))
        run = self.running.pop(turn_id)
        assert self.run(answered(run.turn, run.prompt, answer, str(answer))) is not None
        messages = [run.question, assistant(str(answer))]
        self.ended[turn_id] = Ended(run.number, (*run.prompt, *answer), run.whose, messages)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        run = self.running.pop(data.draw(st.sampled_from(list(self.running))))
        self.run(run.turn.close())

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """The gateway that awaits the answer dies: nobody ends the turn."""
        turn_id = data.draw(st.sampled_from(list(self.running)))
        del self.running[turn_id]
        self.crashed.add(turn_id)

    @precondition(lambda self: self.ended)
    @rule(where=WHERE, data=st.data())
    def freeze(self, where: int, data: st.DataObject) -> None:
        turn_id = data.draw(st.sampled_from(list(self.ended)))
        name = f"w{self.asked}_{len(self.windows)}_{self.ended[turn_id].number}"
        if name not in self.windows:
            self.run(self.at(where).freeze(ANN, "s1", name, turn_id=turn_id, canary=False))
            self.windows[name] = turn_id

    @precondition(lambda self: self.windows)
    @rule(where=WHERE, data=st.data())
    def delete(self, where: int, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.windows)))
        self.run(self.at(where).delete(ANN, name))
        del self.windows[name]

    @precondition(lambda self: self.ended)
    @rule(where=WHERE, name=st.sampled_from(["t1", "t2"]), data=st.data())
    def tag(self, where: int, name: str, data: st.DataObject) -> None:
        turn_id = data.draw(st.sampled_from(list(self.ended)))
        self.run(_branches(self.at(where)).tag(ANN, name, turn_id, move=True))
        self.tags[name] = turn_id

    @precondition(lambda self: self.tags)
    @rule(where=WHERE, data=st.data())
    def untag(self, where: int, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.tags)))
        assert self.run(_branches(self.at(where)).untag(ANN, name)).turn_id == self.tags.pop(name)

    @invariant()
    def tags_name_what_they_were_given(self) -> None:
        if self.database is not None:
            tags = self.run(self.registry.tags("acme", "s1"))
            assert {tag.name: tag.turn_id for tag in tags} == self.tags

    @invariant()
    def no_turn_is_lost_or_left_over(self) -> None:
        if self.database is None:
            return
        there = {turn.id: turn for turn in self.run(self._turns())}
        assert there.keys() == self.ended.keys() | self.running.keys() | self.crashed
        assert {key: turn.number for key, turn in there.items() if turn.state is TurnState.ENDED} == {
            key: ended.number for key, ended in self.ended.items()
        }

    async def _turns(self) -> list[Turn]:
        return await self.registry.turns("acme", "s1", TurnQuery(limit=1000))

    @invariant()
    def the_context_is_that_of_the_agents_last_turn(self) -> None:
        if self.database is None:
            return
        agents = [(turn.number, turn.context) for turn in self.ended.values() if turn.whose]
        if agents:
            assert self.run(self.registry.session_tokens("acme", "s1")) == max(agents)[1]

    def teardown(self) -> None:
        try:
            if self.gateways:
                self.run(self._end())
                for cwm in self.gateways:
                    self.run(cwm.settle())
        finally:
            if self.database is not None:
                self.run(self.database.dispose())
            self.loop.close()
            self.folder.cleanup()

    async def _end(self) -> None:
        """Nothing of a tree has changed. With its session it is gone, whoever still awaits an answer, but for what windows say; that goes with them."""
        assert self.database is not None
        for name, turn_id in self.windows.items():
            window = await self.registry.window("acme", name)
            assert window is not None
            snapshot = await self.registry.snapshot("acme", window.snapshot_id)
            assert snapshot.token_ids == self.ended[turn_id].context
        for turn in await self._turns():
            if turn.state is TurnState.ENDED:
                assert await self.registry.turn_tokens(turn) == self.ended[turn.id].context
                assert await self.registry.turn_messages(turn) == self.ended[turn.id].messages
        await self.gateways[-1].end_session(ANN, "s1")
        for run in self.running.values():
            assert await answered(run.turn, run.prompt, (1,), "late") is None
        left = {turn.id: turn for turn in await self._turns()}
        kept = {*self.windows.values(), *self.tags.values()}
        assert kept <= left.keys() <= self.ended.keys()
        assert bool(left) is bool(kept)
        for turn_id in kept:
            assert await self.registry.turn_messages(left[turn_id]) == self.ended[turn_id].messages
            assert await self.registry.turn_tokens(left[turn_id]) == self.ended[turn_id].context
        for name in self.windows:
            await self.gateways[0].delete(ANN, name)
        for name in self.tags:
            await _branches(self.gateways[-1]).untag(ANN, name)
        assert await self.registry.session("acme", "s1", any_state=True) is None
        assert await self.database.read(_rows) == 0


class SharedTree(Tree):
    """Of two gateways on one Postgres that save sessions by themselves; the second dies and starts under another name."""

    url: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.engine, self.clock = FakeEngine(FakeKvTier(present=False)), Ticking()
        self.dead: set[str] = set()

    async def _gateways(self) -> list[Gateway]:
        self.database = open_database(self.url)
        # Of a sequence that failed something may be left.
        await self.database.write(_empty)
        return [self._gateway("first"), self._gateway("second-0")]

    def _gateway(self, name: str) -> Gateway:
        assert self.database is not None
        return gateway(
            self.database,
            self.engine,
            name=name,
            autosave=AutosavePolicies(AutosavePolicy(every_tokens=1, keep=2)),
            has_ended=lambda holder: holder in self.dead,
            clock=self.clock,
        )

    @rule(new=IDS, answer=IDS, where=WHERE, data=st.data())
    def save(self, new: TokenIds, answer: TokenIds, where: int, data: st.DataObject) -> None:
        """A turn of the agent, with nothing else in flight. At most two automatic windows stay, and all others."""
        for run in self.running.values():
            self.run(run.turn.close())
        self.running.clear()
        self.ask(new=new, part=1.0, whose=True, where=where, data=data)
        self.end(answer=answer, data=data)
        cwm = self.at(where)
        self._look_at(self.run(cwm.reconcile.autosave(dry_run=False)))
        self.run(cwm.freeze.settle())
        assert len(self.run(self.registry.automatic_windows("acme", "s1"))) <= 2

    def _look_at(self, steps: Sequence[Step]) -> None:
        for step in steps:
            assert step.outcome is StepOutcome.DONE
            if step.action == "save_session":
                current = self.run(self.registry.current_turn("acme", "s1"))
                assert current is not None
                self.windows[step.detail.removeprefix("as window ")] = current.id
            elif step.action == "delete_window":
                assert step.subject.startswith("auto_")
                del self.windows[step.subject]

    @rule()
    def crash(self) -> None:
        """What the dead gateway had asked is forgotten by the next reconciliation of the other one."""
        first, second = self.gateways
        self.dead.add(second.replicas.me)
        lost = {turn_id for turn_id, run in self.running.items() if run.holder in self.dead}
        self.gateways[1] = self._gateway(f"second-{len(self.dead)}")
        steps = self.run(first.reconcile()) or []
        self.run(first.freeze.settle())
        assert [step.action for step in steps].count("forget_turn") == len(lost)
        self._look_at(steps)
        for turn_id in lost:
            del self.running[turn_id]


def _branches(cwm: Gateway) -> Branches:
    return Branches(cwm.registry, cwm.thaw.journal, cwm.clock)


def _rows(connection: Connection) -> int:
    counts = (select(func.count()).select_from(table) for table in (turns, turn_contents))
    return sum(connection.execute(count).scalar_one() for count in counts)


def _empty(connection: Connection) -> None:
    for table in reversed(metadata.sorted_tables):
        connection.execute(delete(table))


def walk(sequences: int, steps: int, machine: type[Tree] = Tree) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=sequences,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture(autouse=True)
async def _migrated(sqlite_template: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tree, "migrated", sqlite_template, raising=False)


# In a thread, because each sequence has an event loop of its own.
async def test_a_tree_is_what_a_model_says_it_is() -> None:
    await asyncio.to_thread(walk, 10, 30)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_tree_is_what_a_model_says_it_is_in_ten_thousand_steps() -> None:
    await asyncio.to_thread(walk, 100, 100)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_tree_that_two_gateways_share_is_what_a_model_says_it_is(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SharedTree, "url", postgres_url, raising=False)
    await asyncio.to_thread(walk, 20, 40, SharedTree)
