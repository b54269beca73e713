"""A gateway's sessions and windows without a face: real services over a real registry, an engine and its cache in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cwm.adapters.limits.counts import LimitsRequestCounts
from cwm.adapters.limits.in_process import InProcessStorage
from cwm.adapters.memory.changes import InProcessChanges
from cwm.adapters.memory.running_requests import InProcessRunningRequests
from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.sql.database import Database
from cwm.adapters.sql.kv.noise import SqlNoise
from cwm.adapters.sql.kv.speeds import SqlSpeeds
from cwm.adapters.sql.leases import SqlLeases
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.sql.turns.conversations import SqlConversations
from cwm.adapters.sql.vault import CLEAR, Vault
from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.domain.audit_chain import ChainKeys
from cwm.domain.autosave import AutosavePolicies
from cwm.domain.engine import CacheScope
from cwm.domain.intent import Debt
from cwm.domain.limits import LimitRules
from cwm.domain.list_cursor import ListCursors
from cwm.domain.planner import Choice
from cwm.domain.prefix import TokenIds, digest
from cwm.domain.principal import TENANT
from cwm.domain.window import Window
from cwm.ports.engine import Engine
from cwm.ports.kv_tier import KvTier, PrefixKey
from cwm.ports.registry import Registry
from cwm.services.access.limits import CountStore, Limits
from cwm.services.audit.journal import Journal
from cwm.services.engines.directory import EngineDirectory
from cwm.services.engines.placement import Place
from cwm.services.engines.survey import Survey
from cwm.services.kv.control import Control
from cwm.services.kv.control_time import ControlTime
from cwm.services.kv.noises import Noises
from cwm.services.kv.origins import Origins
from cwm.services.kv.planner import Planner
from cwm.services.kv.prefix import Prefix
from cwm.services.kv.release import Release
from cwm.services.kv.reuse import Reuse
from cwm.services.kv.store import Store
from cwm.services.kv.verify import Verify
from cwm.services.moves.drain import Drain
from cwm.services.moves.move import Move
from cwm.services.moves.upgrades import Upgrades
from cwm.services.replicas import Replicas
from cwm.services.sessions.end_session import EndSession
from cwm.services.sessions.open_session import OpenSession
from cwm.services.sessions.salt_scopes import SaltScopes
from cwm.services.turns.reading.branches import Branches
from cwm.services.turns.reading.current import Current
from cwm.services.turns.reading.history import History
from cwm.services.turns.recording.grow import Grow
from cwm.services.turns.recording.turns import Turns
from cwm.services.turns.sending.generate import Generate, Generated, TurnInput
from cwm.services.upkeep.autosave import Autosave
from cwm.services.upkeep.patrol import Patrol
from cwm.services.upkeep.pin_audit import PinAudit
from cwm.services.upkeep.prove import Prove
from cwm.services.upkeep.reconcile import Reconcile
from cwm.services.upkeep.renewal import Renewal
from cwm.services.upkeep.retention import Retain, RetentionPolicy
from cwm.services.windows.browse import Browse
from cwm.services.windows.clone import Clone
from cwm.services.windows.delete import Delete
from cwm.services.windows.freeze import Freeze
from cwm.services.windows.quarantine import Quarantine
from cwm.services.windows.rename import Rename
from cwm.services.windows.share import Share
from cwm.services.windows.thaw import Thaw
from tests.contracts.nouns import a_window
from tests.fakes.engine import FakeEngine
from tests.fakes.kv_tier import FakeKvTier
from tests.services.replicas_of import ANN, OPERATORS

TEXT = "Once upon a time there was a context of a hundred tokens and some, one for each of its bytes."
FOR_EVER = RetentionPolicy(session_ttl=0, session_kept=0, auto_freeze=False)


@dataclass(slots=True)
class Ticking:
    """Each look at it takes 20 ms, so that whoever waits for a time does not wait long."""

    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    seconds: float = 0.0

    def now(self) -> datetime:
        self.at += timedelta(milliseconds=20)
        return self.at

    def monotonic(self) -> float:
        self.seconds += 0.02
        return self.seconds


@dataclass(frozen=True, slots=True)
class Gateway:
    """``engine`` and ``kv_tier`` are the fakes, whatever stands between them and the services."""

    engine: FakeEngine
    kv_tier: FakeKvTier
    registry: SqlRegistry
    audit: SqlAuditLog
    meter: PrometheusMeter
    clock: Ticking
    replicas: Replicas
    directory: EngineDirectory
    turns: Turns
    limits: Limits
    release: Release
    open_session: OpenSession
    end_session: EndSession
    generate: Generate
    freeze: Freeze
    quarantine: Quarantine
    thaw: Thaw
    move: Move
    survey: Survey
    drain: Drain
    clone: Clone
    share: Share
    rename: Rename
    delete: Delete
    browse: Browse
    history: History
    branches: Branches
    upgrades: Upgrades
    renewal: Renewal
    patrol: Patrol
    retain: Retain
    reconcile: Reconcile

    async def says(self, session_id: str, text: str, max_tokens: int = 8, **sampling: Any) -> Generated:
        turn = TurnInput(text=text, max_tokens=max_tokens, sampling=sampling)
        return await self.generate(ANN, session_id, turn)

    async def session(self, session_id: str = "s1", text: str = TEXT) -> TokenIds:
        """A session of one turn, whose blocks are stored by now; its context."""
        await self.open_session(ANN, session_id)
        await self.says(session_id, text)
        while await self.kv_tier.storing():
            pass
        return await self.registry.session_tokens("acme", session_id)

    async def window(self, name: str = "w1", session_id: str = "s1", **more: Any) -> Window:
        """Of a session of its own."""
        await self.session(session_id)
        return (await self.freeze(ANN, session_id, name, **more)).window

    async def session_key(self, session_id: str = "s1") -> PrefixKey:
        """Names the blocks that a window of the session would have."""
        session = await self.registry.session("acme", session_id)
        assert session is not None
        identity = await self.directory.identity()
        salt = self.directory.salt("acme", session.salt_scope, identity)
        return Prefix(await self.registry.session_tokens("acme", session_id), salt, identity).key

    async def key(self, window: Window) -> PrefixKey:
        snapshot = await self.registry.snapshot(window.tenant, window.snapshot_id)
        return Prefix(snapshot.token_ids, window.cache_salt, window.identity).key

    async def to_be_frozen(self, session_id: str, name: str) -> tuple[Window, TokenIds, int]:
        """What a freeze writes down first."""
        session = await self.registry.session("acme", session_id)
        assert session is not None
        token_ids, key = (
            await self.registry.session_tokens("acme", session_id),
            await self.session_key(session_id),
        )
        window = a_window(
            name,
            session_id=session_id,
            snapshot_id=digest(token_ids),
            token_count=len(token_ids),
            salt_scope=session.salt_scope,
            cache_salt=key.cache_salt,
            identity=await self.directory.identity(),
            pinned=True,
        )
        return window, token_ids, session.revision

    async def debt_of(self, window: Window) -> Debt:
        """All that a window has in the cache."""
        key = await self.key(window)
        hashes = tuple(self.kv_tier.expected_hashes(key) or ())
        chunk_size = self.kv_tier.chunk_size
        return Debt(key.root, key.world_size, chunk_size, len(key.token_ids), window.pinned, hashes)

    async def at_rest(self) -> bool:
        """Nobody is at anything, and pins are what the registry says."""
        salts = await self.registry.salts_of_every_tenant()
        pins = [await self.kv_tier.pins(salt) for salt in salts]
        expected = [await self.registry.pinned_chunks_of_every_tenant(salt) for salt in salts]
        return pins == expected and await self.registry.intents_of_every_tenant() == []

    async def settle(self) -> None:
        """What goes on after its callers were answered, or have left, has ended."""
        if self.engine.gate is not None:
            self.engine.gate.set()
        await self.freeze.settle()
        await self.move.settle()
        await self.generate.settle()
        await self.thaw.settle()
        await self.limits.settle()
        await self.audit.settle()

    async def events(self) -> list[tuple[str, str]]:
        """What was audited and how it ended, the last first."""
        return [(event.event, event.outcome) for event in await self.audit.events("acme", 100)]


def gateway(
    database: Database,
    engine: FakeEngine | None = None,
    *,
    name: str = "me",
    registry: Registry | None = None,
    served: Engine | None = None,
    kv_tier: KvTier | None = None,
    rules: LimitRules = LimitRules(),  # noqa: B008
    policy: RetentionPolicy = FOR_EVER,
    autosave: AutosavePolicies = AutosavePolicies(),  # noqa: B008
    choice: Choice = Choice.LOAD,
    quota_bytes: int | None = None,
    has_ended: Callable[[str], bool | None] = lambda _: None,
    clock: Ticking | None = None,
    visibility: str = TENANT,
    vault: Vault = CLEAR,
) -> Gateway:
    """``registry``, ``served`` and ``kv_tier`` stand between the services and what they use, where a test says so.

    ``visibility``: of sessions that do not say so themselves.
    """
    fake_engine = engine or FakeEngine()
    real_registry, fake_tier = SqlRegistry(database, name, vault), fake_engine.kv_tier
    registry, served, kv_tier = registry or real_registry, served or fake_engine, kv_tier or fake_tier
    clock, meter = clock or Ticking(), PrometheusMeter()
    audit = SqlAuditLog(database, ChainKeys([b"a secret"]))
    replicas = Replicas(leases=SqlLeases(database), me=name, has_ended=has_ended)
    noise = SqlNoise(database)
    directory = EngineDirectory(served, kv_tier, secret=b"a test's secret", weights_digest="", noise=noise)
    journal = Journal(audit=audit, clock=clock, meter=meter, changes=InProcessChanges())
    turns = Turns(records=registry, audit=audit, clock=clock)
    scopes = SaltScopes(registry=registry, clock=clock)
    noises = Noises(served, directory, noise, clock)
    verify = Verify(served, directory, noises, most_places=64)
    control = Control(served, directory, verify, noises, meter, ControlTime(clock))
    release = Release(registry=registry, kv_tier=kv_tier, replicas=replicas)
    store = Store(engine=served, kv_tier=kv_tier, directory=directory, clock=clock, timeout_seconds=10)
    counts = LimitsRequestCounts(InProcessStorage)
    limits = Limits(
        rules=rules,
        counts=counts,
        running=InProcessRunningRequests(counts),
        store=CountStore(refuse=False, meter=meter, clock=clock),
        audit=audit,
        meter=meter,
        clock=clock,
    )
    open_session = OpenSession(
        registry=registry,
        directory=directory,
        journal=journal,
        clock=clock,
        scopes=scopes,
        cache_scope=CacheScope.TENANT,
        visibility=visibility,
    )
    end_session = EndSession(
        registry=registry,
        kv_tier=kv_tier,
        directory=directory,
        in_flight=turns.in_flight,
        journal=journal,
        clock=clock,
        release=release,
    )
    reuse = Reuse(meter)
    generate = Generate(
        registry=registry,
        engine=served,
        directory=directory,
        place=Place(registry, directory, clock),
        turns=turns,
        grow=Grow(served),
        journal=journal,
        reuse=reuse,
        limits=limits,
    )
    freeze = Freeze(
        registry=registry,
        kv_tier=kv_tier,
        directory=directory,
        store=store,
        current=Current(registry, replicas, patience_seconds=0),
        journal=journal,
        clock=clock,
        verify=verify,
        release=release,
        replicas=replicas,
        quota_bytes=quota_bytes,
    )
    quarantine = Quarantine(
        registry=registry,
        engine=served,
        kv_tier=kv_tier,
        directory=directory,
        scopes=scopes,
        journal=journal,
        release=release,
        store_again=freeze.store_again,
    )
    thaw = Thaw(
        registry=registry,
        engine=served,
        kv_tier=kv_tier,
        directory=directory,
        generate=generate,
        verify=verify,
        control=control,
        quarantine=quarantine,
        planner=Planner(
            engine=served,
            kv_tier=kv_tier,
            records=SqlSpeeds(database),
            meter=meter,
            clock=clock,
            choice=choice,
        ),
        origins=Origins(served),
        replicas=replicas,
        journal=journal,
        meter=meter,
        reuse=reuse,
        clock=clock,
        end_session=end_session,
        visibility=visibility,
    )
    move = Move(
        registry=registry,
        engine=served,
        kv_tier=kv_tier,
        directory=directory,
        store=store,
        verify=verify,
        control=control,
        origins=Origins(served),
        current=freeze.current,
        journal=journal,
        clock=clock,
    )
    survey = Survey(registry, directory, OPERATORS)
    clone = Clone(
        registry=registry,
        kv_tier=kv_tier,
        journal=journal,
        clock=clock,
        release=release,
        replicas=replicas,
        quota_bytes=quota_bytes,
    )
    delete = Delete(
        registry=registry,
        kv_tier=kv_tier,
        journal=journal,
        clock=clock,
        release=release,
        replicas=replicas,
    )
    renewal = Renewal(
        registry=registry,
        kv_tier=kv_tier,
        directory=directory,
        store=store,
        verify=verify,
        release=release,
        delete=delete,
        clock=clock,
    )
    patrol = Patrol(registry=registry, kv_tier=kv_tier, directory=directory, freeze=freeze, clock=clock)
    retain = Retain(
        registry=registry,
        conversations=SqlConversations(database),
        freeze=freeze,
        delete=delete,
        end_session=end_session,
        turns=turns,
        clock=clock,
        policy=policy,
    )
    reconcile = Reconcile(
        registry=registry,
        kv_tier=kv_tier,
        replicas=replicas,
        freeze=freeze,
        quarantine=quarantine,
        release=release,
        pin_audit=PinAudit(registry=registry, kv_tier=kv_tier, release=release, replicas=replicas),
        renewal=renewal,
        patrol=patrol,
        prove=Prove(
            registry=registry,
            engine=served,
            kv_tier=kv_tier,
            directory=directory,
            verify=verify,
            control=control,
            quarantine=quarantine,
            clock=clock,
        ),
        autosave=Autosave(
            registry=registry,
            freeze=freeze,
            delete=delete,
            clock=clock,
            retention=policy,
            policies=autosave,
        ),
        retain=retain,
        journal=journal,
        patrol_windows=8,
    )
    return Gateway(
        engine=fake_engine,
        kv_tier=fake_tier,
        registry=real_registry,
        audit=audit,
        meter=meter,
        clock=clock,
        replicas=replicas,
        directory=directory,
        turns=turns,
        limits=limits,
        release=release,
        open_session=open_session,
        end_session=end_session,
        generate=generate,
        freeze=freeze,
        quarantine=quarantine,
        thaw=thaw,
        move=move,
        survey=survey,
        drain=Drain(registry, directory, survey, move, journal, clock),
        clone=clone,
        share=Share(registry, journal),
        rename=Rename(registry, journal, clock),
        delete=delete,
        browse=Browse(
            registry=registry,
            kv_tier=kv_tier,
            directory=directory,
            cursors=ListCursors([b"a secret"]),
            cursor_ttl=timedelta(hours=1),
            journal=journal,
        ),
        history=History(registry, journal),
        branches=Branches(registry, journal, clock, visibility),
        upgrades=Upgrades(registry, directory, OPERATORS, journal, clock),
        renewal=renewal,
        patrol=patrol,
        retain=retain,
        reconcile=reconcile,
    )
