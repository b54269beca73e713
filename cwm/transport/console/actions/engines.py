"""What can be done to an engine."""

from __future__ import annotations

from typing import Final

from cwm.domain.errors import InvalidParameterError
from cwm.services.engines.survey import EngineState
from cwm.transport.console.access.form import Form
from cwm.transport.console.actions.two_steps import ADMIN, Action, Step
from cwm.transport.console.pages import link
from cwm.transport.console.views import Asked
from cwm.transport.console.wording import number

_SECTION: Final = "Engines"
_DRAIN_SECONDS: Final = 60.0


async def _draining(asked: Asked) -> Step:
    engine = await _engine(asked)
    count = number(engine.sessions)
    conversations = f"{count} conversation{'' if engine.sessions == 1 else 's'}"
    whose = ", of all tenants," if asked.services.operators.have(asked.principal) else ""
    moving = f"Its {conversations}{whose} move to other engines with their KV, each with a proof."
    facts = [
        f"{engine.name} gets no new conversations until that is undone. {moving if engine.sessions else 'It serves none now.'}",
        "One that cannot move goes on where it is. This page waits for a minute at most; drain again to go on.",
    ]
    if engine.draining_since is not None:
        facts.insert(0, f"It is being drained already; this goes on with the {conversations} left.")
    return _step(f"Drain {engine.name}", engine, facts)


async def _drain(asked: Asked, _: Form) -> str:
    drained = await asked.services.drain(
        asked.principal, asked.part("engine"), timeout_seconds=_DRAIN_SECONDS
    )
    return link("engines", notice="drained-partly" if drained.stayed else "drained")


async def _undraining(asked: Asked) -> Step:
    engine = await _engine(asked)
    blocked = "It is not being drained." if engine.draining_since is None else ""
    facts = [f"{engine.name} takes new conversations again. Those that moved stay where they are."]
    return _step(f"Undo the drain of {engine.name}", engine, facts, blocked)


async def _undrain(asked: Asked, _: Form) -> str:
    await asked.services.drain.undo(asked.principal, asked.part("engine"))
    return link("engines", notice="undrained")


async def _engine(asked: Asked) -> EngineState:
    """CWM-1003 for one that is not there, CWM-9002 for one that serves other tenants, too."""
    name = asked.part("engine")
    asked.services.survey.require_own(asked.principal, name)
    for each in await asked.services.survey(asked.principal):
        if each.name == name:
            return each
    raise InvalidParameterError("This engine went off the list just now.", field="engine")


def _step(title: str, engine: EngineState, facts: list[str], blocked: str = "") -> Step:
    return Step(title, facts, (engine.name, engine.draining_since), link("engines"), (), blocked)


ENGINES: Final = {
    "drain": Action(
        "Drain", _SECTION, ADMIN, _draining, _drain, is_destructive=True, takes_time=True,
        fits=lambda engine: bool(engine.name) and engine.is_own,
    ),
    "undrain": Action(
        "Undo the drain", _SECTION, ADMIN, _undraining, _undrain,
        fits=lambda engine: bool(engine.name) and engine.is_own and engine.draining_since is not None,
    ),
}  # fmt: skip
