"""Search: finds words in what was said, in all conversations that one may read, or in one of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf
from typing import Final

from cwm.domain.errors import InvalidParameterError
from cwm.domain.principal import Principal
from cwm.domain.session import Session, SessionMark, SessionQuery
from cwm.domain.turn import TurnSource
from cwm.domain.visibility import Right, has_everywhere, may
from cwm.domain.word_search import Finding, SearchMark, Words
from cwm.services.turns.reading.history import History

MAX_FINDINGS: Final = 100
_MOST_MESSAGES: Final = 20_000
_SESSIONS_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True)
class FindingPage:
    """``searched``: how many messages were read. ``next_cursor``: where to go on; None when everything was searched.

    ``back_to``: when the last session that was searched began, if there is more to search.
    """

    findings: Sequence[Finding]
    searched: int
    next_cursor: str | None
    back_to: datetime | None = None


@dataclass(frozen=True, slots=True)
class Search:
    """Reads every message: there is no index, which would hold what was said once more. So one call has a bound."""

    history: History

    async def __call__(
        self,
        principal: Principal,
        query: str,
        of: TurnSource | None = None,
        limit: int = 20,
        cursor: str | None = None,
        *,
        whole: bool = False,
        seconds: float = inf,
    ) -> FindingPage:
        """Messages with all words of ``query``, the newest session first, and in it the newest turn.

        In one session or in the context of a window if ``of`` names it. A call ends with the session in which it has read 20,000
        messages, or after so many ``seconds``. With ``whole`` each finding has its message. CWM-1001/1002/1003, 2001, 2002, 4004.
        """
        until = self.history.journal.clock.monotonic() + seconds
        page = await self._page(principal, query, of, limit, cursor, until)
        return replace(page, findings=await self._read(principal.tenant, page.findings)) if whole else page

    async def _read(self, tenant: str, findings: Sequence[Finding]) -> list[Finding]:
        contents = {}
        for session_id in {finding.session_id for finding in findings}:
            digests = {each.digest for each in findings if each.session_id == session_id}
            for message in await self.history.registry.messages_with(tenant, session_id, sorted(digests)):
                contents[session_id, message.digest] = message.content
        return [replace(each, content=contents.get((each.session_id, each.digest))) for each in findings]

    async def _page(
        self,
        principal: Principal,
        query: str,
        of: TurnSource | None,
        limit: int,
        cursor: str | None,
        until: float,
    ) -> FindingPage:
        words = Words.parse(query)
        if not 1 <= limit <= MAX_FINDINGS:
            raise InvalidParameterError(f"limit is 1 to {MAX_FINDINGS}.", field="limit", limit=limit)
        mark = None if cursor is None else SearchMark.parse(cursor)
        findings: list[Finding] = []
        marks: list[SearchMark] = []
        searched = 0
        async for session, up_to in self._conversations(principal, of, mark):
            here = SessionMark(session.created_at, session.id)
            matches, message_count = await self.history.registry.findings(
                principal.tenant, session.id, words, up_to
            )
            searched += message_count
            if mark is not None and mark.session == here:
                matches = [each for each in matches if (each.number, each.index) < (mark.number, mark.index)]
            if matches and of is None:
                await self.history.note(principal, session, session=session.id)
            findings += matches
            marks += [SearchMark(here, each.number, each.index) for each in matches]
            if len(findings) > limit:
                return FindingPage(findings[:limit], searched, str(marks[limit - 1]), session.created_at)
            is_enough = searched >= _MOST_MESSAGES or self.history.journal.clock.monotonic() >= until
            if is_enough and of is None:
                return FindingPage(findings, searched, str(SearchMark(here)), session.created_at)
        return FindingPage(findings, searched, None)

    async def _conversations(
        self, principal: Principal, of: TurnSource | None, mark: SearchMark | None
    ) -> AsyncIterator[tuple[Session, str | None]]:
        """The sessions to search that one may read, each with the turn whose context alone counts, if any."""
        registry = self.history.registry
        if of is not None:
            session_id, turn_id = await self.history.current(principal, of)
            session = await registry.session(principal.tenant, session_id, any_state=True)
            if session is not None and (of.window_name is None or turn_id is not None):
                yield session, turn_id if of.window_name is not None else None
            return
        circles = None if has_everywhere(principal, Right.CONTENTS) else principal.circles
        query = SessionQuery(limit=_SESSIONS_AT_ONCE, circles=circles)
        if mark is not None:
            query = replace(query, after=mark.session)
            session = await registry.session(principal.tenant, mark.session.id) if mark.number else None
            same = session is not None and session.created_at == mark.session.created_at
            if session is not None and same and may(principal, session.circle, Right.CONTENTS):
                yield session, None
        while page := await registry.sessions(principal.tenant, query):
            for session in page:
                yield session, None
            query = replace(query, after=SessionMark(page[-1].created_at, page[-1].id))
