"""The way of a turn: where a request belongs, what is sent for it, and who answers in place of an engine that is gone."""

from __future__ import annotations

from dataclasses import dataclass, field

from cwm.domain.conversation import CapturePolicies
from cwm.domain.habits import RepairPolicies
from cwm.ports.clock import Clock
from cwm.ports.engine import Engine
from cwm.ports.registry import Registry
from cwm.ports.turn_wire import TurnWire
from cwm.services.access.limits import Limits
from cwm.services.audit.journal import Journal
from cwm.services.engines.directory import EngineDirectory
from cwm.services.engines.placement import Place
from cwm.services.kv.reuse import Reuse
from cwm.services.responses.responses import Responses
from cwm.services.sessions.open_session import OpenSession
from cwm.services.turns.asking.continuation import Continuation
from cwm.services.turns.asking.enter_session import EnterSession
from cwm.services.turns.asking.find_session import FindSession
from cwm.services.turns.asking.match_conversation import MatchConversation
from cwm.services.turns.asking.prepare import Prepare
from cwm.services.turns.asking.statement import Statements
from cwm.services.turns.pass_through import PassThrough
from cwm.services.turns.takeover import Takeover
from cwm.services.turns.turns import Turns


@dataclass(frozen=True, slots=True)
class TurnParts:
    """What turns are made of. ``single_user``: everything that is asked is one person's."""

    engine: Engine
    wire: TurnWire
    registry: Registry
    directory: EngineDirectory
    place: Place
    open_session: OpenSession
    continuation: Continuation
    turns: Turns
    journal: Journal
    limits: Limits
    reuse: Reuse
    responses: Responses
    clock: Clock
    capture: CapturePolicies = field(default_factory=CapturePolicies)
    repairs: RepairPolicies = field(default_factory=RepairPolicies)
    single_user: bool = False


def build_pass_through(parts: TurnParts) -> PassThrough:
    registry, directory, journal = parts.registry, parts.directory, parts.journal
    return PassThrough(
        engine=parts.engine,
        wire=parts.wire,
        directory=directory,
        find_session=FindSession(
            registry,
            directory,
            parts.continuation,
            MatchConversation(registry),
            journal,
            parts.capture,
            parts.single_user,
        ),
        prepare=Prepare(
            engine=parts.engine,
            directory=directory,
            place=parts.place,
            open_session=parts.open_session,
            turns=parts.turns,
            enter=EnterSession(registry, parts.open_session, journal, parts.clock),
            continuation=parts.continuation,
            statements=Statements(registry, journal),
            journal=journal,
            limits=parts.limits,
        ),
        takeover=Takeover(registry, directory),
        turns=parts.turns,
        journal=journal,
        limits=parts.limits,
        reuse=parts.reuse,
        responses=parts.responses,
        repairs=parts.repairs,
    )
