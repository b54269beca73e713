"""Builds reconciliation and the watchdog."""

from __future__ import annotations

from dataclasses import dataclass

from cwm.services.upkeep.autosave import Autosave
from cwm.services.upkeep.patrol import Patrol
from cwm.services.upkeep.pin_audit import PinAudit
from cwm.services.upkeep.prove import Prove
from cwm.services.upkeep.reconcile import Reconcile
from cwm.services.upkeep.renewal import Renewal
from cwm.services.upkeep.retention import Retain
from cwm.services.upkeep.watchdog import Watchdog
from cwm.settings import Settings
from cwm.wiring.engine_side import EngineSide
from cwm.wiring.foundation import Foundation


@dataclass(frozen=True, slots=True)
class Upkeep:
    reconcile: Reconcile
    watchdog: Watchdog


def build_upkeep(settings: Settings, base: Foundation, side: EngineSide) -> Upkeep:
    registry, kv_tier, clock = base.registry, side.kv_tier, base.clock
    reconcile = Reconcile(
        registry=registry,
        kv_tier=kv_tier,
        replicas=base.replicas,
        freeze=side.freeze,
        quarantine=side.quarantine,
        release=side.release,
        pin_audit=PinAudit(registry=registry, kv_tier=kv_tier, release=side.release, replicas=base.replicas),
        renewal=Renewal(
            registry=registry,
            kv_tier=kv_tier,
            directory=side.directory,
            store=side.freeze.store,
            verify=side.freeze.verify,
            release=side.release,
            delete=side.delete,
            clock=clock,
            at_once=settings.engine.moves_at_once,
        ),
        patrol=Patrol(
            registry=registry, kv_tier=kv_tier, directory=side.directory, freeze=side.freeze, clock=clock
        ),
        prove=Prove(
            registry=registry,
            engine=side.engine,
            kv_tier=kv_tier,
            directory=side.directory,
            verify=side.freeze.verify,
            control=side.thaw.control,
            quarantine=side.quarantine,
            clock=clock,
        ),
        autosave=Autosave(
            registry=registry,
            freeze=side.freeze,
            delete=side.delete,
            clock=clock,
            retention=side.policy,
            policies=settings.autosave,
        ),
        retain=Retain(
            registry=registry,
            conversations=side.pass_through.responses.conversations.records,
            freeze=side.freeze,
            delete=side.delete,
            end_session=side.end_session,
            turns=side.turns,
            clock=clock,
            policy=side.policy,
        ),
        journal=base.journal,
        patrol_windows=settings.retention.patrol_windows,
    )
    watchdog = Watchdog(
        engine=side.engine,
        kv_tier=kv_tier,
        directory=side.directory,
        meter=base.meter,
        clock=clock,
        on_loss=reconcile.lost,
    )
    return Upkeep(reconcile=reconcile, watchdog=watchdog)
