"""A gateway's sessions and windows without a face: real services over a real registry, an engine and its cache in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cwm.adapters.limits.counts import LimitsRequestCounts
from cwm.adapters.limits.in_process import InProcessStorage
from cwm.adapters.memory.changes import InProcessChanges
from cwm.adapters.memory.running_requests import InProcessRunningRequests
from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.sql.database import Database
from cwm.adapters.sql.leases import SqlLeases
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.sql.speeds import SqlSpeeds
from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.domain.audit import AuditEvent
from cwm.domain.audit_chain import ChainKeys
from cwm.domain.engine import CacheScope
from cwm.domain.limits import LimitRules
from cwm.domain.planner import Choice
from cwm.domain.prefix import TokenIds
from cwm.domain.tool_policy import ToolPolicies
from cwm.domain.window import Window
from cwm.ports.clock import Clock
from cwm.ports.engine import Engine
from cwm.ports.kv_tier import KvTier
from cwm.ports.registry import Registry
from cwm.services.access.limits import CountStore, Limits
from cwm.services.audit.journal import Journal
from cwm.services.engines.directory import EngineDirectory
from cwm.services.kv.origins import Origins
from cwm.services.kv.planner import Planner
from cwm.services.kv.prefix import Prefix
from cwm.services.kv.release import Release
from cwm.services.kv.store import Store
from cwm.services.kv.verify import Verify
from cwm.services.replicas import Replicas
from cwm.services.sessions.end_session import EndSession
from cwm.services.sessions.open_session import OpenSession
from cwm.services.sessions.salt_scopes import Scopes
from cwm.services.turns.generate import Generate, Generated, TurnInput
from cwm.services.turns.grow import Grow
from cwm.services.turns.turns import Turns
from cwm.services.upkeep.patrol import Patrol
from cwm.services.upkeep.pin_audit import PinAudit
from cwm.services.upkeep.reconcile import Reconcile
from cwm.services.upkeep.retention import Retain, RetentionPolicy
from cwm.services.windows.clone import Clone
from cwm.services.windows.delete import Delete
from cwm.services.windows.freeze import Freeze, Frozen
from cwm.services.windows.quarantine import Quarantine
from cwm.services.windows.thaw import Thaw
from tests.fakes.engine import FakeEngine
from tests.fakes.kv_tier import FakeKvTier
from tests.services.replicas_of import ANN

SECRET = b"a test's secret"


@dataclass(slots=True)
class Ticking:
    """Each look at it takes 20 ms, so that whoever waits for a time does not wait long."""

    at: datetime = datetime(2026, 3, 1, tzinfo=UTC)
    seconds: float = 0.0

    def now(self) -> datetime:
        self.at += timedelta(milliseconds=20)
        return self.at

    def monotonic(self) -> float:
        self.seconds += 0.02
        return self.seconds


@dataclass(slots=True)
class Gateway:
    """``registry``, ``engine`` and ``kv_tier`` are what the services are given, which may be something around the fakes.

    Its parts are made when they are first asked for.
    """

    database: Database
    fake_engine: FakeEngine
    name: str = "me"
    clock: Clock = field(default_factory=Ticking)
    rules: LimitRules = field(default_factory=LimitRules)
    policy: RetentionPolicy = field(default_factory=lambda: RetentionPolicy(0, 0, auto_freeze=False))
    ...
