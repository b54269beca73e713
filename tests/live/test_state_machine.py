"""Sequences of calls that nobody thought of, on the real engine, against a model that is a few dictionaries."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cwm.domain.errors import CwmError
from cwm.domain.principal import Principal
from cwm.domain.session import LIVE, SessionQuery, SessionState
from cwm.domain.window import Durability, Retention, WindowQuery
from tests.contracts.nouns import recorded
from tests.live.crasher import Crasher, crasher
from tests.live.engine import LiveEngine
from tests.live.house import House, house
from tests.live.talk import words

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

T = TypeVar("T")

# Contexts that share beginnings, so that chunks are shared, and end within a chunk.
_TRUNK = words(96)
_BRANCHES = [[*_TRUNK[:cut], *words(rest)] for cut, rest in ((96, 10), (64, 50), (32, 5), (0, 70))]
_PICK = st.integers(0, 10_000)
_TENANT = st.sampled_from(["acme", "bolt"])


@dataclass
class Model:
    """What a tenant should have: sessions as (state, ids), windows as (ids, its session)."""

    sessions: dict[str, tuple[SessionState, list[int]]] = field(default_factory=dict)
    windows: dict[str, tuple[list[int], str]] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    made: int = 0

    def name(self, kind: str) -> str:
        """Equal in both tenants."""
        self.made += 1
        return f"{kind}-{self.made}"

    def live(self) -> list[str]:
        return [s for s, (state, _) in self.sessions.items() if state in LIVE]

    def not_frozen(self) -> list[str]:
        """Also the expired ones, which lost their last window."""
        return [s for s, (state, _) in self.sessions.items() if state is not SessionState.FROZEN]

    def dependents(self, window: str) -> bool:
        return any(p == window and (c in self.windows or c in self.live()) for c, p in self.parents.items())


class Machine(RuleBasedStateMachine):
    """One registry, two tenants on it, one engine. ``engine`` and ``killed`` are set by the test."""

    engine: LiveEngine
    killed: Crasher

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.opened = AsyncExitStack()
        self.models = {tenant: Model() for tenant in ("acme", "bolt")}
        self.homes: dict[str, House] = {}
        self.runner.run(self._open())

    async def _open(self) -> None:
        for tenant in self.models:
            home = house(self.engine, Path(self.folder.name), CWM_TENANT=tenant)
            self.homes[tenant] = await self.opened.enter_async_context(home)

    def teardown(self) -> None:
        for tenant in self.models:
            self.runner.run(self.agrees(tenant, whole=True))
        self.runner.run(self.opened.aclose())
        self.runner.close()
        self.folder.cleanup()

    def call(self, tenant: str, work: Coroutine[Any, Any, T]) -> T:
        """Do something as one tenant, and see that the other one has what it had."""
        other = next(name for name in self.models if name != tenant)
        before = self.runner.run(self.everything(other))
        try:
            return self.runner.run(work)
        finally:
            assert self.runner.run(self.everything(other)) == before

    async def everything(self, tenant: str) -> list[Any]:
        """All that is a tenant's: records, tokens, pins, and every value in the shared tier."""
        home = self.homes[tenant]
        registry = home.parts.base.registry
        found = await registry.windows(tenant, WindowQuery(limit=100))
        listed, total = found.windows, found.total
        sessions = await registry.sessions(tenant, SessionQuery(limit=100))
        salts = {window.cache_salt for window in listed}
        return [
            [(w.name, w.durability, w.pinned, w.snapshot_id, w.block_count) for w in listed],
            total,
            [(s.id, s.state, s.token_count, s.revision) for s in sessions],
            [await home.parts.engine_side.kv_tier.pins(salt) for salt in sorted(salts)],
            [sorted([key async for key in home.redis.scan_iter(f"*{salt}")]) for salt in sorted(salts)],
        ]

    @rule(tenant=_TENANT, branch=st.sampled_from(_BRANCHES), extra=st.integers(0, 40))
    def open_a_session(self, tenant: str, branch: list[int], extra: int) -> None:
        model = self.models[tenant]
        session, ids = model.name("s"), [*branch, *words(extra)]
        self.call(tenant, self._filled(tenant, session, ids))
        model.sessions[session] = (SessionState.ACTIVE, ids)

    async def _filled(self, tenant: str, session: str, ids: list[int]) -> None:
        parts = self.homes[tenant].parts
        await parts.services.open_session(Principal(tenant, "agent"), session)
        await recorded(parts.base.registry, tenant, session, ids, parts.upkeep.reconcile.journal.clock.now())

    @rule(tenant=_TENANT, pick=_PICK, retention=st.sampled_from(Retention))
    def freeze_a_session(self, tenant: str, pick: int, retention: Retention) -> None:
        model = self.models[tenant]
        for session in _one_of(model.not_frozen(), pick):
            window = model.name("w")
            services = self.homes[tenant].parts.services
            freeze = services.freeze(Principal(tenant, "agent"), session, window, retention=retention)
            frozen = self.call(tenant, freeze)
            assert frozen.window.durability is Durability.DURABLE
            self._froze(model, session, window)

    def _froze(self, model: Model, session: str, window: str) -> None:
        state, ids = model.sessions[session]
        model.sessions[session] = (SessionState.FROZEN if state in LIVE else state, ids)
        model.windows[window] = (ids, session)
        if session in model.parents:
            model.parents[window] = model.parents[session]

    @rule(tenant=_TENANT, pick=_PICK)
    def thaw_a_window(self, tenant: str, pick: int) -> None:
        model = self.models[tenant]
        for window in _one_of(list(model.windows), pick):
            session = model.name("s")
            services = self.homes[tenant].parts.services
            thawed = self.call(tenant, services.thaw(Principal(tenant, "agent"), window, session))
            assert not thawed.partial
            assert thawed.receipt.evidence.verification in {"exact", "skipped"}
            model.sessions[session] = (SessionState.THAWED, model.windows[window][0])
            model.parents[session] = window

    @rule(tenant=_TENANT, pick=_PICK)
    def clone_a_window(self, tenant: str, pick: int) -> None:
        model = self.models[tenant]
        for window in _one_of(list(model.windows), pick):
            copy = model.name("w")
            services = self.homes[tenant].parts.services
            self.call(tenant, services.clone(Principal(tenant, "agent"), window, copy))
            model.windows[copy] = model.windows[window]
            model.parents[copy] = window

    @rule(tenant=_TENANT, pick=_PICK, force=st.booleans())
    def delete_a_window(self, tenant: str, pick: int, force: bool) -> None:
        model = self.models[tenant]
        for window in _one_of(list(model.windows), pick):
            services = self.homes[tenant].parts.services
            delete = services.delete(Principal(tenant, "agent"), window, force=force)
            if model.dependents(window) and not force:
                with pytest.raises(CwmError, match="is in use by"):
                    self.call(tenant, delete)
            else:
                self.call(tenant, delete)
                self._deleted(model, window)

    def _deleted(self, model: Model, window: str) -> None:
        _, session = model.windows.pop(window)
        used = any(session == other for _, other in model.windows.values())
        if not used and model.sessions.get(session, (None,))[0] is SessionState.FROZEN:
            model.sessions[session] = (SessionState.EXPIRED, model.sessions[session][1])

    @rule(tenant=_TENANT, pick=_PICK)
    def delete_a_session(self, tenant: str, pick: int) -> None:
        model = self.models[tenant]
        for session in _one_of(model.not_frozen(), pick):
            services = self.homes[tenant].parts.services
            self.call(tenant, services.end_session(Principal(tenant, "agent"), session))
            del model.sessions[session]

    @rule(tenant=_TENANT, name=st.integers(1, 20), tool=st.sampled_from(["thaw", "delete", "clone"]))
    def ask_for_what_only_the_other_tenant_has(self, tenant: str, name: int, tool: str) -> None:
        window = f"w-{name}"
        if window in self.models[tenant].windows:
            return
        service = getattr(self.homes[tenant].parts.services, tool)
        arguments = [window, "stolen"] if tool == "clone" else [window]
        with pytest.raises(CwmError) as refused:
            self.call(tenant, service(Principal(tenant, "thief"), *arguments))
        assert refused.value.code == "CWM-2002"

    @rule(
        tenant=_TENANT,
        pick=_PICK,
        step=st.integers(1, 18),
        verb=st.sampled_from(["freeze", "clone", "delete"]),
    )
    def be_killed(self, tenant: str, pick: int, step: int, verb: str) -> None:
        """All of it or nothing, as the registry says after it was reconciled; the model takes that over."""
        model = self.models[tenant]
        for subject in _one_of(model.not_frozen() if verb == "freeze" else list(model.windows), pick):
            if verb == "delete" and model.dependents(subject):
                continue
            name = model.name("w")
            arguments = [subject] if verb == "delete" else [subject, name]
            self.call(tenant, self._killed(tenant, verb, arguments, step))
            known = set(self.runner.run(self._names(tenant)))
            if verb == "freeze" and name in known:
                self._froze(model, subject, name)
            elif verb == "clone" and name in known:
                model.windows[name] = model.windows[subject]
                model.parents[name] = subject
            elif verb == "delete" and subject not in known:
                self._deleted(model, subject)

    async def _killed(self, tenant: str, verb: str, arguments: list[str], step: int) -> None:
        home = self.homes[tenant]
        ended = await asyncio.to_thread(self.killed.run, home.environ, verb, *arguments, die_after=step)
        assert ended["killed"] or ended["finished"], ended["error"]
        await home.reconciled()

    async def _names(self, tenant: str) -> list[str]:
        listed = (
            await self.homes[tenant].parts.base.registry.windows(tenant, WindowQuery(limit=100))
        ).windows
        return [window.name for window in listed]

    @precondition(lambda self: any(model.made for model in self.models.values()))
    @rule()
    def restart_the_gateways(self) -> None:
        self.runner.run(self.opened.aclose())
        self.opened = AsyncExitStack()
        self.runner.run(self._open())
        self.runner.run(self.homes["acme"].reconciled())

    @invariant()
    def registry_and_pins_are_what_the_model_says(self) -> None:
        for tenant in self.models:
            self.runner.run(self.agrees(tenant, whole=False))

    async def agrees(self, tenant: str, *, whole: bool) -> None:
        home, model = self.homes[tenant], self.models[tenant]
        registry = home.parts.base.registry
        sessions = await registry.sessions(tenant, SessionQuery(limit=100))
        assert {s.id: s.state for s in sessions} == {s: state for s, (state, _) in model.sessions.items()}
        for session, (_, ids) in model.sessions.items():
            assert await registry.session_tokens(tenant, session) == tuple(ids)
        listed = (await registry.windows(tenant, WindowQuery(limit=100))).windows
        assert {window.name for window in listed} == set(model.windows)
        for window in listed:
            snapshot = await registry.snapshot(tenant, window.snapshot_id)
            assert snapshot.token_ids == tuple(model.windows[window.name][0])
            if whole:
                assert await home.is_whole(window)
        for salt in {window.cache_salt for window in listed}:
            expected = await registry.pinned_chunks_of_every_tenant(salt)
            assert await home.parts.engine_side.kv_tier.pins(salt) == expected


def _one_of(names: list[str], pick: int) -> list[str]:
    return [names[pick % len(names)]] if names else []


@pytest.fixture(scope="module")
def killed() -> Iterator[Crasher]:
    with crasher() as process:
        yield process


def test_no_sequence_of_calls_and_kills_loses_a_window_or_reaches_another_tenant(
    live_engine: LiveEngine, killed: Crasher
) -> None:
    class Bound(Machine):
        pass

    Bound.engine, Bound.killed = live_engine, killed
    run_state_machine_as_test(
        Bound,
        settings=settings(
            max_examples=12,
            stateful_step_count=16,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
