"""The engine side: sessions, turns, windows and the KV beneath them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from cwm.adapters.lmcache.client import LmcacheTier
from cwm.adapters.local.secret import load_secret, signing_secrets
from cwm.adapters.sql.kv.noise import SqlNoise
from cwm.adapters.sql.kv.speeds import SqlSpeeds
from cwm.adapters.sql.kv.turn_sums import SqlTurnSums
from cwm.adapters.sql.turns.conversations import SqlConversations
from cwm.adapters.sql.turns.responses import SqlResponses
from cwm.adapters.vllm.fleet import VllmFleet
from cwm.adapters.vllm.turns.wire import VllmWire
from cwm.domain.list_cursor import ListCursors
from cwm.domain.principal import Principal
from cwm.domain.session import Session
from cwm.services.engines.directory import EngineDirectory
from cwm.services.engines.placement import Place
from cwm.services.engines.survey import Survey
from cwm.services.kv.control import Control
from cwm.services.kv.control_time import ControlTime
from cwm.services.kv.noises import Noises
from cwm.services.kv.origins import Origins
from cwm.services.kv.planner import Planner
from cwm.services.kv.release import Release
from cwm.services.kv.reuse import Reuse
from cwm.services.kv.store import Store
from cwm.services.kv.turn_sums import TurnSums
from cwm.services.kv.verify import Verify
from cwm.services.moves.drain import Drain
from cwm.services.moves.move import Move
from cwm.services.moves.upgrades import Upgrades
from cwm.services.responses.conversations import StoredConversations
from cwm.services.responses.responses import Responses
from cwm.services.sessions.end_session import EndSession
from cwm.services.sessions.open_session import OpenSession
from cwm.services.sessions.salt_scopes import SaltScopes
from cwm.services.turns.finding.calling_conversation import CallingConversation
from cwm.services.turns.finding.continuation import Continuation
from cwm.services.turns.reading.current import Current
from cwm.services.turns.recording.grow import Grow
from cwm.services.turns.recording.turns import Turns
from cwm.services.turns.sending.generate import Generate
from cwm.services.turns.sending.pass_through import PassThrough
from cwm.services.upkeep.retention import RetentionPolicy
from cwm.services.windows.browse import Browse
from cwm.services.windows.clone import Clone
from cwm.services.windows.delete import Delete
from cwm.services.windows.freeze import Freeze
from cwm.services.windows.quarantine import Quarantine
from cwm.services.windows.thaw import Thaw
from cwm.settings import Settings
from cwm.wiring.engine_list import EngineList
from cwm.wiring.foundation import Foundation
from cwm.wiring.limits import shared_with_others
from cwm.wiring.turns import TurnParts, build_pass_through


@dataclass(frozen=True, slots=True)
class EngineSide:
    engine_list: EngineList
    engine: VllmFleet
    kv_tier: LmcacheTier
    directory: EngineDirectory
    policy: RetentionPolicy
    turns: Turns
    release: Release
    open_session: OpenSession
    end_session: EndSession
    generate: Generate
    pass_through: PassThrough
    calling_conversation: CallingConversation
    reuse: Reuse
    turn_sums: TurnSums
    freeze: Freeze
    quarantine: Quarantine
    thaw: Thaw
    move: Move
    survey: Survey
    drain: Drain
    upgrades: Upgrades
    clone: Clone
    delete: Delete
    browse: Browse

    async def configure(self, new: Settings) -> None:
        """Apply changed engines, models' aliases, and policies of turns."""
        await self.engine_list.configure(new)
        self.directory.aliases = new.aliases
        self.pass_through.find_session.captured.rules.policies = new.capture
        self.turns.keep = new.keep
        self.pass_through.repairs = new.repairs


def build_engine_side(settings: Settings, base: Foundation) -> EngineSide:
    clock, registry, journal, replicas = base.clock, base.registry, base.journal, base.replicas
    turns_settings = settings.turns
    engine_list = EngineList(settings, base.tracer)
    engine, kv_tier = engine_list.fleet, engine_list.kv_tier
    noise = SqlNoise(base.database)
    directory = EngineDirectory(
        engine,
        kv_tier,
        secret=load_secret(settings.isolation),
        weights_digest=settings.engine.weights_digest,
        aliases=settings.aliases,
        rules={name: entry.rules for name, entry in engine_list.entries().items()},
        noise=noise,
    )
    engine_list.directory = directory
    place = Place(registry, directory, clock)
    retention, verification = settings.retention, settings.verification
    policy = RetentionPolicy(
        session_ttl=retention.session_ttl_seconds,
        session_kept=retention.session_kept_seconds,
        auto_freeze=retention.auto_freeze,
        keep=settings.keep,
    )
    turns = Turns(
        records=registry,
        audit=base.audit,
        clock=clock,
        keep=settings.keep,
        tracer=base.tracer,
        storage=base.storage,
    )
    scopes = SaltScopes(registry=registry, clock=clock)
    release = Release(registry=registry, kv_tier=kv_tier, replicas=replicas)
    noises = Noises(engine, directory, noise, clock)
    verify = Verify(engine, directory, noises, most_places=verification.places)
    control = Control(engine, directory, verify, noises, base.meter, ControlTime(clock))
    open_session = OpenSession(
        registry=registry,
        directory=directory,
        journal=journal,
        clock=clock,
        scopes=scopes,
        cache_scope=settings.isolation.cache_scope,
        visibility=settings.session_visibility(),
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
    turn_sums = TurnSums(SqlTurnSums(base.database), clock)
    reuse, grow = Reuse(base.meter, turn_sums), Grow(engine)
    generate = Generate(
        registry=registry,
        engine=engine,
        directory=directory,
        place=place,
        turns=turns,
        grow=grow,
        journal=journal,
        reuse=reuse,
        limits=base.limits,
    )
    store = Store(
        engine=engine,
        kv_tier=kv_tier,
        directory=directory,
        clock=clock,
        timeout_seconds=settings.engine.store_timeout_seconds,
    )
    current, origins = Current(registry, replicas), Origins(engine)
    freeze = Freeze(
        registry=registry,
        kv_tier=kv_tier,
        directory=directory,
        store=store,
        current=current,
        journal=journal,
        clock=clock,
        verify=verify,
        release=release,
        replicas=replicas,
        quota_bytes=retention.quota_bytes(),
        visibility=settings.isolation.window_visibility,
    )
    quarantine = Quarantine(
        registry=registry,
        engine=engine,
        kv_tier=kv_tier,
        directory=directory,
        scopes=scopes,
        journal=journal,
        release=release,
        store_again=freeze.store_again,
    )
    thaw = Thaw(
        registry=registry,
        engine=engine,
        kv_tier=kv_tier,
        directory=directory,
        generate=generate,
        verify=verify,
        control=control,
        quarantine=quarantine,
        planner=Planner(
            engine=engine,
            kv_tier=kv_tier,
            records=SqlSpeeds(base.database),
            meter=base.meter,
            clock=clock,
            choice=settings.thaw.thaw_plan,
        ),
        origins=origins,
        replicas=replicas,
        journal=journal,
        meter=base.meter,
        reuse=reuse,
        clock=clock,
        end_session=end_session,
        visibility=settings.session_visibility(),
        storage=base.storage,
    )
    move = Move(
        registry=registry,
        engine=engine,
        kv_tier=kv_tier,
        directory=directory,
        store=store,
        verify=verify,
        control=control,
        origins=origins,
        current=current,
        journal=journal,
        clock=clock,
        at_once=settings.engine.moves_at_once,
    )
    survey = Survey(registry, directory, base.operators)

    responses = Responses(
        SqlResponses(base.database, base.registry.vault),
        StoredConversations(
            SqlConversations(base.database, base.registry.vault),
            clock,
            base.replicas,
            journal,
            lambda tenant: turns.keep.of(tenant).messages,
            turns_settings.context_limit(),
            base.storage,
        ),
        clock,
        journal,
        turns_settings.context_limit(),
    )

    async def thawed(
        principal: Principal, window_name: str, session_id: str | None, visibility: str | None
    ) -> Session:
        return (await thaw(principal, window_name, session_id, visibility=visibility)).session

    return EngineSide(
        engine_list=engine_list,
        engine=engine,
        kv_tier=kv_tier,
        directory=directory,
        policy=policy,
        turns=turns,
        release=release,
        open_session=open_session,
        end_session=end_session,
        generate=generate,
        reuse=reuse,
        turn_sums=turn_sums,
        pass_through=build_pass_through(
            TurnParts(
                engine=engine,
                wire=VllmWire(
                    settings.engine.max_answer_bytes,
                    turns_settings.schema_limits(),
                    turns_settings.sequences,
                    engine_list.media,
                    frozenset(turns_settings.passed_fields),
                ),
                registry=registry,
                directory=directory,
                place=place,
                open_session=open_session,
                continuation=Continuation(registry, thawed),
                grow=grow,
                turns=turns,
                journal=journal,
                limits=base.limits,
                reuse=reuse,
                responses=responses,
                clock=clock,
                capture=settings.capture,
                repairs=settings.repairs,
                single_user=not shared_with_others(settings, base.access.identity),
            )
        ),
        calling_conversation=CallingConversation(
            registry, clock, lambda tenant: turns.keep.of(tenant).messages
        ),
        freeze=freeze,
        quarantine=quarantine,
        thaw=thaw,
        move=move,
        survey=survey,
        drain=Drain(registry, directory, survey, move, journal, clock),
        upgrades=Upgrades(registry, directory, base.operators, journal, clock),
        clone=Clone(
            registry=registry,
            kv_tier=kv_tier,
            journal=journal,
            clock=clock,
            release=release,
            replicas=replicas,
            quota_bytes=retention.quota_bytes(),
            visibility=settings.isolation.window_visibility,
        ),
        delete=Delete(
            registry=registry,
            kv_tier=kv_tier,
            journal=journal,
            clock=clock,
            release=release,
            replicas=replicas,
        ),
        browse=Browse(
            registry=registry,
            kv_tier=kv_tier,
            directory=directory,
            cursors=ListCursors(signing_secrets(settings.isolation)),
            cursor_ttl=timedelta(seconds=settings.stored_results.cursor_ttl_seconds),
            journal=journal,
        ),
    )
