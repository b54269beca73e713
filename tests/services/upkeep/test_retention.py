"""What retention does with many at once, of which some fail."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import uuid4

import pytest

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.sql.turns.conversations import SqlConversations
from cwm.domain.errors import InvalidParameterError, StorageReadError
from cwm.domain.keep import KeepPolicies, KeepPolicy
from cwm.domain.names import require_window_name
from cwm.domain.prefix import TokenIds
from cwm.domain.response import StoredConversation
from cwm.domain.session import Session, SessionsSince, SessionState
from cwm.domain.turn import Turn
from cwm.domain.upkeep import Step, StepOutcome
from cwm.domain.window import Chunk
from cwm.services.upkeep.retention import RetentionPolicy
from tests.contracts.nouns import IDS, LATER, NOW, a_session, a_turn, freeze, stored
from tests.services.replicas_of import ANN
from tests.services.turns.talk import took
from tests.services.windows_of import Gateway, gateway

pytestmark = pytest.mark.slow


class Failing(SqlRegistry):
    """Says nothing of all that has ``bad`` in its name."""

    async def chunks(self, tenant: str, name: str) -> list[Chunk]:
        if "bad" in name:
            raise StorageReadError("Never.")
        return await super().chunks(tenant, name)

    async def turn_tokens(self, turn: Turn) -> TokenIds:
        if "bad" in turn.session_id:
            raise StorageReadError("Never.")
        return await super().turn_tokens(turn)


class Changing(SqlRegistry):
    """Its window is stored anew while somebody looks at it for the first time."""

    changed = False

    async def chunks(self, tenant: str, name: str) -> list[Chunk]:
        chunks = await super().chunks(tenant, name)
        window = await self.window(tenant, name)
        if window is not None and not self.changed:
            self.changed = True
            again = await self.store_again(
                window, window.salt_scope, "another", window.identity, NOW, pinned=False
            )
            assert again is not None
            await self.finish_freeze(again[0], stored("a"), LATER + timedelta(seconds=1))
        return chunks


class Touched(SqlRegistry):
    """Another gateway goes on with every session as soon as it was found to be idle."""

    async def idle_sessions_of_every_tenant(self, query: SessionsSince) -> list[Session]:
        idle = await super().idle_sessions_of_every_tenant(query)
        for session in idle:
            turn = a_turn(uuid4().hex, session.id, session.tenant, asked_at=LATER)
            assert await self.begin_turn(turn, session.created_at)
        return idle


def looking(
    database: Database, registry: type[SqlRegistry] = SqlRegistry, *, auto_freeze: bool = True
) -> Gateway:
    policy = RetentionPolicy(session_ttl=60.0, session_kept=0.0, auto_freeze=auto_freeze)
    return gateway(database, registry=registry(database, "me"), policy=policy)


def done(steps: Sequence[Step]) -> list[str]:
    return [step.subject for step in steps if step.outcome is StepOutcome.DONE]


@pytest.fixture(autouse=True)
def _two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cwm.services.upkeep.retention._AT_ONCE", 2)


@pytest.mark.parametrize(
    ("general", "own", "gone"),
    [(0, {"acme": 60}, ["of-acme"]), (60, {"acme": 0}, ["of-bolt"]), (60, {}, ["of-acme", "of-bolt"])],
)
async def test_a_tenant_has_its_own_lifetimes(
    database: Database, general: float, own: dict[str, float], gone: list[str]
) -> None:
    keep = KeepPolicies(
        by_tenant={tenant: KeepPolicy(session_ttl=60, session_kept=kept) for tenant, kept in own.items()}
    )
    cwm = gateway(database, policy=RetentionPolicy(60, general, auto_freeze=False, keep=keep))
    for tenant in ("acme", "bolt"):
        await cwm.registry.add_session(a_session(f"of-{tenant}", tenant), IDS)
    assert len(done(await cwm.retain(dry_run=False))) == 2
    cwm.clock.at += timedelta(minutes=2)
    assert sorted(done(await cwm.retain(dry_run=False))) == gone


async def test_a_conversation_in_which_nothing_is_said_lives_as_long_as_a_session(database: Database) -> None:
    policy = RetentionPolicy(
        600, 300, auto_freeze=False, keep=KeepPolicies(by_tenant={"bolt": KeepPolicy(session_ttl=0)})
    )
    cwm, records = gateway(database, policy=policy), SqlConversations(database)
    await cwm.registry.add_session(a_session("s1"), ())
    now = cwm.clock.now()
    for number, (tenant, age, session_id) in enumerate(
        (
            ("acme", 901, None),
            ("acme", 899, None),
            ("acme", 901, "s1"),
            ("acme", 901, "gone"),
            ("bolt", 901, None),
        )
    ):
        at = now - timedelta(seconds=age)
        await records.add(StoredConversation(tenant, f"conv_{number}", "ann", at, at, {}, session_id), [])
    planned = [step for step in await cwm.retain(dry_run=True) if step.action == "delete_conversation"]
    assert {step.outcome for step in planned} == {StepOutcome.PLANNED}
    assert sorted(step.subject for step in planned) == ["conv_0", "conv_3"]
    await cwm.retain(dry_run=False)
    assert [each.id for each in await records.of_owner("acme", "ann")] == ["conv_1", "conv_2"]
    assert len(await records.of_owner("bolt", "ann")) == 1


async def test_sessions_that_were_found_by_what_was_said_have_their_own_lifetimes(database: Database) -> None:
    by_tenant = {"acme": KeepPolicy(found_session_ttl=60, found_session_kept=0)}
    keep = KeepPolicies(KeepPolicy(found_session_kept=30), by_tenant)
    cwm = gateway(database, policy=RetentionPolicy(600, 600, auto_freeze=False, keep=keep))
    for tenant, found_by in (("acme", "content"), ("acme", "client"), ("acme", ""), ("bolt", "content")):
        metadata = {"found_by": found_by} if found_by else {}
        at = cwm.clock.now()
        session = a_session(f"{tenant}-{found_by}", tenant, metadata=metadata, updated_at=at)
        await cwm.registry.add_session(session, IDS)
    cwm.clock.at += timedelta(minutes=2)
    assert done(await cwm.retain(dry_run=False)) == ["acme-content"]
    cwm.clock.at += timedelta(minutes=10)
    assert sorted(done(await cwm.retain(dry_run=False))) == ["acme-", "acme-client", "bolt-content"]
    cwm.clock.at += timedelta(minutes=2)
    assert done(await cwm.retain(dry_run=False)) == ["bolt-content"]


async def test_windows_that_cannot_be_deleted_do_not_stand_in_the_way_of_others(database: Database) -> None:
    cwm = looking(database, Failing)
    for number, name in enumerate(("bad1", "bad2", "w3", "w4", "w5")):
        await freeze(cwm.registry, name, "a", expires_at=LATER + timedelta(seconds=number))
    assert done(await cwm.retain(dry_run=False)) == []
    assert done(await cwm.retain(dry_run=False)) == ["w3", "w4"]
    assert await cwm.registry.window("acme", "w3") is None


async def test_sessions_that_cannot_be_frozen_do_not_stand_in_the_way_of_others(database: Database) -> None:
    cwm = looking(database, Failing)
    for number, name in enumerate(("bad1", "bad2", "s3")):
        at = NOW + timedelta(seconds=number)
        await cwm.registry.add_session(a_session(name, token_count=len(IDS), updated_at=at), IDS)
    assert done(await cwm.retain(dry_run=False)) == []
    assert done(await cwm.retain(dry_run=False)) == ["s3"]
    frozen = await cwm.registry.session("acme", "s3")
    assert frozen is not None
    assert frozen.state is SessionState.FROZEN


async def test_a_window_that_changed_while_it_was_being_deleted_is_looked_at_again_by_the_next_look(
    database: Database,
) -> None:
    cwm = looking(database, Changing)
    await freeze(cwm.registry, "w", "a", expires_at=LATER)
    (postponed,) = await cwm.retain(dry_run=False)
    assert (postponed.outcome, "changed meanwhile" in postponed.detail) == (StepOutcome.POSTPONED, True)
    assert done(await cwm.retain(dry_run=False)) == ["w"]
    assert await cwm.registry.window("acme", "w") is None


async def test_nobody_is_passed_over_because_the_engine_was_away(database: Database) -> None:
    cwm = looking(database)
    await cwm.registry.add_session(a_session(token_count=len(IDS)), IDS)
    cwm.engine.away = True
    for _ in range(2):
        (step,) = await cwm.retain(dry_run=False)
        assert step.detail == "vLLM does not answer."
    cwm.engine.away = False
    assert done(await cwm.retain(dry_run=False)) == ["s1"]


async def test_what_is_frozen_of_two_sessions_never_has_one_name(database: Database) -> None:
    """Alike in their first forty characters, or one after the other of the same id."""
    cwm = looking(database)
    ids = [f"{'s' * 63}{last}" for last in "ab"]
    names = set()
    for session in (*map(a_session, ids), a_session(ids[0], created_at=LATER)):
        await cwm.registry.add_session(session, IDS)
        plan, _ = await cwm.retain(dry_run=True)
        names.add(require_window_name(plan.detail.removeprefix("as window ")))
        await cwm.registry.remove_session(session.tenant, session.id, LATER, "")
    assert len(names) == 3


@pytest.mark.parametrize("auto_freeze", [False, True])
async def test_a_session_does_not_expire_in_the_middle_of_a_turn(
    database: Database, *, auto_freeze: bool
) -> None:
    cwm = looking(database, auto_freeze=auto_freeze)
    await cwm.registry.add_session(a_session(token_count=len(IDS)), IDS)
    with cwm.turns.begin(ANN, "s1"):
        assert await cwm.retain(dry_run=False) == []
    assert (await cwm.registry.session("acme", "s1")) == a_session(token_count=len(IDS))
    assert len(await cwm.retain(dry_run=False)) == 1


async def test_a_session_that_another_gateway_goes_on_with_is_not_frozen_for_having_been_idle(
    database: Database,
) -> None:
    """It was idle when the look began, which takes long where there is much to freeze."""
    cwm = looking(database, Touched)
    await cwm.registry.add_session(a_session(token_count=len(IDS)), IDS)
    assert await cwm.retain(dry_run=False) == []
    session = await cwm.registry.session("acme", "s1")
    assert session is not None
    assert session.state is SessionState.ACTIVE


async def test_what_a_refused_request_left_is_forgotten_and_what_a_tool_made_stays(
    database: Database,
) -> None:
    cwm = gateway(database)
    await cwm.open_session(ANN, "made")
    await cwm.open_session(ANN, "refused", listed=False)
    cwm.clock.at += timedelta(minutes=9)
    assert await cwm.retain(dry_run=False) == []
    cwm.clock.at += timedelta(minutes=2)
    (planned,) = await cwm.retain(dry_run=True)
    assert (planned.action, planned.subject) == ("forget_session", "refused")
    assert done(await cwm.retain(dry_run=False)) == ["refused"]
    assert await cwm.registry.session("acme", "refused") is None
    assert await cwm.registry.session("acme", "made") is not None


async def test_a_session_of_two_conversations_is_frozen_although_nobody_can_be_asked(
    sqlite: Database,
) -> None:
    cwm = looking(sqlite)
    await cwm.open_session(ANN, "s1")
    for prompt in ((1, 2), (3, 4), (1, 2, 7, 8, 9, 5), (3, 4, 7, 8, 9, 5)):
        await took(cwm, prompt)
    with pytest.raises(InvalidParameterError, match="two conversations"):
        await cwm.freeze(ANN, "s1", "w1")
    cwm.clock.at += timedelta(minutes=2)
    assert done(await cwm.retain(dry_run=False)) == ["s1"]
    session = await cwm.registry.session("acme", "s1")
    assert session is not None
    assert session.state is SessionState.FROZEN
