"""The habit of a client by which a request leaves what was recorded. It is in the texts, where they are kept."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from cwm.domain.clients.habit import Habit
from cwm.domain.divergence import Divergence
from cwm.domain.errors import StorageCorruptionError
from cwm.domain.habits import habit
from cwm.domain.session import Session
from cwm.domain.turn import Message
from cwm.ports.registry import Registry
from cwm.services.aside import aside_of
from cwm.services.audit.journal import Journal


@dataclass(frozen=True, slots=True)
class Habits:
    registry: Registry
    journal: Journal

    async def named(self, session: Session, messages: Sequence[Message], diverged: Divergence) -> Divergence:
        """The divergence of a request with these messages, with the habit that it comes from; both are counted."""
        self.journal.meter.event(f"turn_diverged_{diverged.cause}")
        own_habit = await self._habit(session, messages, diverged)
        if own_habit is not None:
            self.journal.meter.event(f"turn_habit_{own_habit}")
        return replace(diverged, habit=own_habit)

    async def _habit(
        self, session: Session, messages: Sequence[Message], diverged: Divergence
    ) -> Habit | None:
        if diverged.old is None or diverged.new is None:
            return habit(diverged.cause, None, None)
        old: Sequence[Message] = ()
        with suppress(StorageCorruptionError):
            old = await self.registry.messages_with(session.tenant, session.id, [diverged.old])
        before, now = old[0].content if old else None, messages[diverged.message].content
        return await aside_of((before, now), lambda: habit(diverged.cause, before, now))
