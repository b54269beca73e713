"""Who listens hears what changed in its own tenant, of what it may see, and costs nothing when it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from cwm.adapters.memory.changes import InProcessChanges
from cwm.domain.access import EVERY
from cwm.domain.changes import SESSIONS_URI, WINDOWS_URI, Change, ChangeKind
from cwm.domain.engine_health import EngineHealth
from cwm.domain.errors import ConcurrencyLimitError, StorageReadError
from cwm.domain.marks import Touch, WindowMark
from cwm.domain.principal import Principal
from cwm.services.health.live import MOST_LISTENERS, Listener, Live, LiveKind
from tests.eventually import eventually
from tests.services.replicas_of import OPERATORS, HandClock

NOW = datetime(2026, 11, 27, 9, 0, tzinfo=UTC)
ANN, BOB = Principal("acme", "ann"), Principal("acme", "bob")
OTHER = Principal("bolt", "ann")


@dataclass
class Records:
    """What is so now. ``reads``: tenants whose windows were asked for."""

    touched: dict[str, dict[str, Touch]] = field(default_factory=dict)
    windows: dict[str, WindowMark] = field(default_factory=dict)
    drains: dict[str, datetime] = field(default_factory=dict)
    reads: list[str] = field(default_factory=list)
    away: bool = False

    async def touched_of_every_tenant(self, since: datetime) -> dict[str, dict[str, Touch]]:
        if self.away:
            raise StorageReadError("It is away.")
        return {tenant: dict(each) for tenant, each in self.touched.items()}

    async def window_mark(self, tenant: str) -> WindowMark:
        self.reads.append(tenant)
        return self.windows.get(tenant, WindowMark())

    async def drained_engines(self) -> dict[str, datetime]:
        return dict(self.drains)


class House:
    """Looks when a test says so."""

    def __init__(self) -> None:
        records: Any = Records()
        self.records: Records = records
        self.changes = InProcessChanges()
        self.health = {"north": EngineHealth()}
        directory: Any = SimpleNamespace(health=self.health, names=lambda *_, **__: ("north",))
        self.live = Live(
            self.records, records, directory, self.changes, HandClock(NOW.timestamp()), OPERATORS
        )
        self.visits = ExitStack()

    def listener(self, principal: Principal = ANN, since: datetime | None = None) -> Listener:
        return self.visits.enter_context(self.live.listening(principal, since))

    def touch(
        self, session_id: str, circle: str = "tenant", at: datetime = NOW, tenant: str = "acme"
    ) -> None:
        self.records.touched.setdefault(tenant, {})[session_id] = Touch(at, circle)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    with house.visits:
        yield house
    await house.live.aclose()


def conversations(*ids: str) -> dict[LiveKind, frozenset[str]]:
    return {LiveKind.CONVERSATIONS: frozenset(ids)}


async def test_a_turn_is_heard_of_in_its_tenant_only(house: House) -> None:
    ann, other = house.listener(), house.listener(OTHER)
    await house.live.look()
    assert ann.take() == {}
    house.touch("s1")
    await house.live.look()
    assert (ann.take(), other.take()) == (conversations("s1"), {})
    await house.live.look()
    assert ann.take() == {}


async def test_what_is_of_somebody_elses_circle_is_not_heard_of(house: House) -> None:
    ann, bob, admin = (
        house.listener(ANN),
        house.listener(BOB),
        house.listener(Principal("acme", "eve", EVERY)),
    )
    await house.live.look()
    house.touch("s1", "owner:ann")
    await house.live.look()
    assert (ann.take(), bob.take(), admin.take()) == (conversations("s1"), {}, conversations("s1"))


async def test_a_window_and_an_engine_are_heard_of_by_kind(house: House) -> None:
    ann = house.listener()
    await house.live.look()
    house.records.windows["acme"] = WindowMark(1, 1, NOW)
    await house.live.look()
    assert ann.take() == {LiveKind.WINDOWS: frozenset()}
    house.records.drains["north"] = NOW
    await house.live.look()
    assert ann.take() == {LiveKind.ENGINES: frozenset()}
    house.health["north"] = EngineHealth(is_up=False, since=NOW)
    await house.live.look()
    assert ann.take() == {LiveKind.ENGINES: frozenset()}


@pytest.mark.parametrize(
    ("age_seconds", "heard"),
    [(0, conversations("s1")), (5, conversations("s1")), (3600, dict.fromkeys([*LiveKind][:3], frozenset()))],
)
async def test_what_changed_since_a_page_was_made_is_heard_of_at_once(
    house: House, age_seconds: int, heard: dict[LiveKind, frozenset[str]]
) -> None:
    """Whose page is too old to say what changed is told that all may have."""
    house.touch("earlier", at=NOW - timedelta(seconds=8))
    house.touch("s1")
    ann = house.listener(since=NOW - timedelta(seconds=age_seconds))
    await house.live.look()
    assert ann.take() == heard


async def test_news_of_the_gateway_are_passed_on(house: House) -> None:
    ann, admin, other = (
        house.listener(),
        house.listener(Principal("acme", "eve", EVERY)),
        house.listener(OTHER),
    )
    for uri in (SESSIONS_URI, WINDOWS_URI, "cwm://context/tenant"):
        await house.changes.publish(Change(ChangeKind.RESOURCE, uri, tenant="acme"))
    house.changes.tell(Change(ChangeKind.TOOLS))
    both = {LiveKind.CONVERSATIONS: frozenset[str](), LiveKind.WINDOWS: frozenset[str]()}
    assert (ann.take(), other.take()) == (both, {})
    assert admin.take() == both | {LiveKind.UPSTREAMS: frozenset()}


async def test_ids_are_left_out_where_not_all_are_known(house: House) -> None:
    ann = house.listener()
    await house.live.look()
    house.touch("s1")
    await house.live.look()
    await house.changes.publish(Change(ChangeKind.RESOURCE, SESSIONS_URI, tenant="acme"))
    assert ann.take() == conversations()
    for number in range(21):
        house.touch(f"n{number}")
    await house.live.look()
    assert ann.take() == conversations()


async def test_nothing_is_asked_while_nobody_listens_and_one_question_serves_all_of_a_tenant(
    house: House,
) -> None:
    tasks = len(asyncio.all_tasks())
    assert house.records.reads == []
    with ExitStack() as visits:
        for _ in range(3):
            visits.enter_context(house.live.listening(ANN))
        await eventually(lambda: house.records.reads == ["acme"])
    # What looks has ended, and not only until its next look.
    await eventually(lambda: len(asyncio.all_tasks()) == tasks)
    assert (len(house.live), house.records.reads) == (0, ["acme"])


async def test_a_registry_that_is_away_for_a_while_is_no_end(house: House) -> None:
    ann = house.listener()
    await house.live.look()
    house.records.away = True
    house.touch("s1")
    await house.live.look()
    assert ann.take() == {}
    house.records.away = False
    await house.live.look()
    assert ann.take() == conversations("s1")


async def test_a_ninth_listener_of_a_principal_is_refused(house: House) -> None:
    for _ in range(MOST_LISTENERS):
        house.listener()
    with pytest.raises(ConcurrencyLimitError) as refused:
        house.listener()
    assert refused.value.retry_after_seconds == 15
    house.listener(BOB)
    house.visits.close()
    house.listener()


async def test_all_end_with_the_gateway(house: House) -> None:
    ann = house.listener()
    house.live.close()
    assert ann.ended
    assert ann.news.is_set()
    assert house.listener().ended
