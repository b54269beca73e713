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
from cwm.services.turns.asking.enter_session import EnterSession
from cwm.services.turns.asking.habits import Habits
from cwm.services.turns.asking.in_session import InSession
from cwm.services.turns.asking.prepare import Prepare
from cwm.services.turns.asking.special_tokens import SpecialTokens
from cwm.services.turns.asking.statement import Statements
from cwm.services.turns.asking.whole_prompt import WholePrompt
from cwm.services.turns.asking.without_session import WithoutSession
from cwm.services.turns.finding.by_content import ByContent
from cwm.services.turns.finding.by_name import ByName
from cwm.services.turns.finding.capture_rules import CaptureRules
from cwm.services.turns.finding.captured import Captured
from cwm.services.turns.finding.continuation import Continuation
from cwm.services.turns.finding.find_session import FindSession
from cwm.services.turns.finding.match_conversation import MatchConversation
from cwm.services.turns.recording.grow import Grow
from cwm.services.turns.recording.turns import Turns
from cwm.services.turns.sending.pass_through import PassThrough
from cwm.services.turns.sending.takeover import Takeover


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
    grow: Grow
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
    match = MatchConversation(registry)
    captured = Captured(
        CaptureRules(parts.capture, parts.single_user),
        directory,
        ByName(registry, match),
        ByContent(match),
    )
    prepare = Prepare(
        parts.turns,
        EnterSession(registry, parts.open_session, journal, parts.clock),
        InSession(
            parts.place,
            SpecialTokens(parts.engine, journal),
            Statements(registry, Habits(registry, journal)),
            WholePrompt(registry, parts.grow),
        ),
        WithoutSession(directory, parts.place, parts.open_session, parts.limits),
    )
    return PassThrough(
        engine=parts.engine,
        wire=parts.wire,
        directory=directory,
        find_session=FindSession(parts.continuation, captured, journal),
        prepare=prepare,
        takeover=Takeover(registry, directory),
        turns=parts.turns,
        journal=journal,
        limits=parts.limits,
        reuse=parts.reuse,
        responses=parts.responses,
        repairs=parts.repairs,
    )
