"""A request as it is sent to the engine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from cwm.domain.engine import EngineIdentity
from cwm.domain.session import Session
from cwm.ports.engine import Engine
from cwm.ports.turn_wire import TurnRequest
from cwm.services.turns.recording.turns import RunningTurn


@dataclass(frozen=True, slots=True)
class Outbound:
    """A request, and where it goes.

    ``engine`` is the one that is asked, ``identity`` what is known of it, ``session`` the one that it serves; ``turn`` is set if it is
    recorded; ``ids_requested``: token ids were requested; ``counted``: for its tokens to be recorded or budgeted;
    ``abortable``: the engine survives that it is aborted at any moment; ``left`` is set when its client leaves.
    """

    request: TurnRequest
    body: bytes
    engine: Engine
    identity: EngineIdentity | None = None
    session: Session | None = None
    turn: RunningTurn | None = None
    ids_requested: bool = False
    counted: bool = False
    abortable: bool = False
    left: asyncio.Event = field(default_factory=asyncio.Event)
