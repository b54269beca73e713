"""Special tokens in what a caller wrote: its text may imitate another role."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from cwm.domain.principal import Principal
from cwm.domain.session import Session
from cwm.ports.engine import Engine
from cwm.ports.turn_wire import TurnRequest
from cwm.services.audit.journal import Journal
from cwm.threads import aside


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    engine: Engine
    journal: Journal

    async def note(
        self, principal: Principal, session: Session, request: TurnRequest, size: int, engine: str
    ) -> None:
        """Audit a prompt that contains control tokens of the model on this engine. ``size``: of the request, in bytes."""
        special = await self.engine.on(engine).special_tokens(session.model)
        count = await aside(size, lambda: _occurrences(request.texts(), special))
        if not count:
            return
        await self.journal.note(
            principal, "session.special_tokens", "passed", {"count": count}, session_id=session.id
        )


def _occurrences(texts: Iterable[str], tokens: Collection[str]) -> int:
    """How often the tokens occur. A model may have hundreds, of few beginnings, and most texts have none of those."""
    beginnings = {token[:2] for token in tokens}
    count = 0
    for text in texts:
        present = {beginning for beginning in beginnings if beginning in text}
        if present:
            count += sum(text.count(token) for token in tokens if token[:2] in present)
    return count
