"""Outlook: what an action would meet and what it would do, before anybody does it. Nothing is changed or recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cwm.domain.keep import TreeSize
from cwm.domain.names import require_session_id, require_window_name
from cwm.domain.principal import Principal
from cwm.domain.session import Session
from cwm.domain.turn import Turn, TurnQuery, TurnTag
from cwm.domain.visibility import Right, has_everywhere
from cwm.domain.window import Window
from cwm.ports.registry import Dependents, Registry
from cwm.services.access.sight import session_of, turn_of, window_of
from cwm.services.windows.delete import Delete

_AT_A_TIME: Final = 1000


@dataclass(frozen=True, slots=True)
class WindowOutlook:
    """``blocks`` of ``size_bytes`` nothing else refers to: they go with the window. ``dependents`` came from it."""

    window: Window
    blocks: int
    size_bytes: int
    dependents: Dependents


@dataclass(frozen=True, slots=True)
class SessionOutlook:
    session: Session
    current: Turn | None
    tree: TreeSize


@dataclass(frozen=True, slots=True)
class TurnOutlook:
    """A turn, its session and where that is. ``tags`` are the turn's."""

    turn: Turn
    session: Session
    current: Turn | None
    tags: Sequence[TurnTag]


@dataclass(frozen=True, slots=True)
class Branch:
    """A turn and all that came from it. ``holders`` keep it from being deleted: the conversation's place, tags, windows."""

    turns: int
    tokens: int
    holders: Sequence[str]


@dataclass(frozen=True, slots=True)
class Outlook:
    registry: Registry
    delete: Delete

    async def window(self, principal: Principal, name: str, right: Right) -> Window:
        """CWM-1002, 2002."""
        return await window_of(self.registry, principal, require_window_name(name), right)

    async def deletion(self, principal: Principal, name: str) -> WindowOutlook:
        """What goes with a window. CWM-1002, 2002."""
        window = await self.window(principal, name, Right.DELETE)
        circles = None if has_everywhere(principal, Right.RECORD) else principal.circles
        dependents = await self.registry.dependents(window.tenant, window.name, circles)
        chunks = await self.delete.unshared(window)
        return WindowOutlook(window, len(chunks), sum(chunk.size_bytes for chunk in chunks), dependents)

    async def session(self, principal: Principal, session_id: str, right: Right) -> SessionOutlook:
        """CWM-1001, 2001."""
        session = await session_of(self.registry, principal, require_session_id(session_id), right)
        current = await self.registry.current_turn(session.tenant, session.id)
        return SessionOutlook(session, current, await self.registry.tree_size(session.tenant, session.id))

    async def turn(self, principal: Principal, turn_id: str, right: Right) -> TurnOutlook:
        """CWM-2007."""
        turn, session = await turn_of(self.registry, principal, turn_id, right)
        current = await self.registry.current_turn(session.tenant, session.id)
        tags = await self.registry.tags(session.tenant, session.id)
        return TurnOutlook(turn, session, current, [tag for tag in tags if tag.turn_id == turn.id])

    async def branch(self, principal: Principal, turn_id: str) -> Branch:
        """What goes with a turn. CWM-2007."""
        turn, session = await turn_of(self.registry, principal, turn_id, Right.USE)
        children: dict[str, list[Turn]] = {}
        for each in await self._turns(session):
            children.setdefault(each.parent or "", []).append(each)
        falling, waiting = {turn.id: turn}, [turn.id]
        while waiting:
            for child in children.get(waiting.pop(), ()):
                if child.id not in falling:
                    falling[child.id] = child
                    waiting.append(child.id)
        tokens = sum(each.total_tokens - each.parent_at for each in falling.values())
        return Branch(len(falling), tokens, await self._holders(session, falling))

    async def _turns(self, session: Session) -> list[Turn]:
        turns: list[Turn] = []
        before = None
        while True:
            page = await self.registry.turns(session.tenant, session.id, TurnQuery(_AT_A_TIME, before))
            turns += page
            if len(page) < _AT_A_TIME:
                return turns
            before = page[-1].number

    async def _holders(self, session: Session, falling: dict[str, Turn]) -> list[str]:
        current = await self.registry.current_turn(session.tenant, session.id)
        holders = ["the conversation, which is there"] if current and current.id in falling else []
        tags = await self.registry.tags(session.tenant, session.id)
        holders += [f"tag {tag.name}" for tag in tags if tag.turn_id in falling]
        windows = await self.registry.windows_of_session(session.tenant, session.id)
        return holders + [f"window {window.name}" for window in windows if window.turn_id in falling]
