"""Special tokens in what a caller wrote: its text may imitate another role."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from cwm.domain.principal import Principal
from cwm.domain.session import Session
from cwm.ports.engine import Engine
from cwm.ports.turn_wire import TurnRequest
from cwm.services.audit.journal import Journal
from cwm.threads import aside

_MOST_COUNTED: Final = 1_000


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    engine: Engine
    journal: Journal

    async def note(
        self, principal: Principal, session: Session, request: TurnRequest, size: int, engine: str
    ) -> None:
        """Audit a prompt that contains control tokens of the model on this engine. ``size``: of the request, in bytes."""
        special = await self.engine.on(engine).special_tokens(session.model)
        count = await aside(size, lambda: _occurrences(request.texts(), frozenset(special)))
        if not count:
            return
        await self.journal.note(
            principal, "session.special_tokens", "passed", {"count": count}, session_id=session.id
        )


def _occurrences(texts: Iterable[str], tokens: frozenset[str]) -> int:
    """How often the tokens occur, up to ``_MOST_COUNTED``. A model may have hundreds, of few beginnings, and most texts have none of those."""
    beginnings = {token[:2] for token in tokens}
    count = 0
    for text in texts:
        if any(beginning in text for beginning in beginnings):
            found = _pattern(tokens).finditer(text.encode(errors="surrogatepass"))
            count += sum(1 for _ in islice(found, _MOST_COUNTED - count))
    return count


@lru_cache(maxsize=4)
def _pattern(tokens: frozenset[str]) -> Any:
    """RE2 looks for hundreds of tokens at once, and lets other threads run meanwhile."""
    import re2

    options = re2.Options()
    options.never_capture = True
    longest_first = sorted(tokens, key=lambda token: (-len(token), token))
    return re2.compile(b"|".join(re2.escape(token.encode()) for token in longest_first), options)
