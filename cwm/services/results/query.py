"""Queries over stored results, so that an agent need not read all of them."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from cwm.domain.cursor import Position
from cwm.domain.errors import InvalidParameterError
from cwm.domain.json_pointer import value_at
from cwm.domain.json_text import compact_json
from cwm.domain.pages import Pages
from cwm.domain.principal import Principal
from cwm.domain.result_query import (
    Counted,
    Query,
    QueryFindings,
    QueryKind,
    count_lines,
    head,
    matches_by_line,
    tail,
)
from cwm.domain.results import Part, PartKind, StoredResult
from cwm.ports.query_engine import Matches, QueryEngine
from cwm.services.results.query_slots import QuerySlots
from cwm.services.results.results import Results, parsed
from cwm.threads import in_thread

MAX_MATCHES: Final = 1_000
_MAX_JSON_BYTES: Final = 32 * 2**20
_BYTES_A_TOKEN: Final = 8
"""More bytes a token than any text has on average: a longer piece of an answer is over its budget."""


@dataclass(frozen=True, slots=True)
class AnswerPage:
    """A piece of an answer. ``size``: bytes of the whole answer. ``end``: the offset after the piece."""

    result: StoredResult
    part: int
    text: str
    start: int
    end: int
    size: int
    tokens: int
    total: int
    complete: bool
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Computes a query's answer again for each piece: stored results never change, so neither does the answer."""

    results: Results
    engine: QueryEngine
    jmespath_slots: QuerySlots = field(default_factory=lambda: QuerySlots(3, 10.0))
    pattern_slots: QuerySlots = field(default_factory=lambda: QuerySlots(4, 10.0))

    async def __call__(
        self,
        principal: Principal,
        handle: str,
        query: Query,
        *,
        budget_tokens: int,
        part: int = 0,
        cursor: str | None = None,
    ) -> AnswerPage:
        """At most ``budget_tokens`` of the answer; ``cursor`` continues where the last piece ended.

        CWM-2005; CWM-1003 for a query that does not suit the part, is malformed or too expensive, and for a cursor of
        another query; CWM-7002 if it would wait too long for other queries.
        """
        result, start = await self.results.find(principal, handle), 0
        if cursor is not None:
            start = (await self._position(principal, cursor, result, part, query)).offset
        async with self._slot(principal, query.kind):
            answer = await self._answer(await self.results.part_of(result, part), query)
        pages = Pages(answer.text.encode(), max(1, budget_tokens * _BYTES_A_TOKEN))
        count = self.results.tokens.count
        end, tokens = pages.fitting(start, pages.upto(start, pages.page_bytes), budget_tokens, count)
        after = Position(result.handle, part, end)
        goes_on = end < len(pages.body)
        return AnswerPage(
            result=result,
            part=part,
            text=pages.shown(start, end),
            start=start,
            end=end,
            size=len(pages.body),
            tokens=tokens,
            total=answer.total,
            complete=answer.complete,
            next_cursor=self.results.cursor_at(principal, result, after, query.told) if goes_on else None,
        )

    def _slot(self, principal: Principal, kind: QueryKind) -> AbstractAsyncContextManager[None]:
        match kind:
            case QueryKind.JMESPATH:
                return self.jmespath_slots.slot(principal.tenant)
            case QueryKind.REGEX | QueryKind.SEARCH:
                return self.pattern_slots.slot(principal.tenant)
            case _:
                return nullcontext()

    async def _position(
        self, principal: Principal, cursor: str, result: StoredResult, part: int, query: Query
    ) -> Position:
        of_cursor, position = await self.results.located(principal, cursor, query.told, noted=False)
        if (of_cursor.handle, position.part) != (result.handle, part):
            raise InvalidParameterError(
                "This cursor was given for another result or part.", field="cursor", reason="foreign"
            )
        return position

    async def _answer(self, part: Part, query: Query) -> QueryFindings:
        argument = query.argument
        match query.kind:
            case QueryKind.JMESPATH | QueryKind.JSON_POINTER:
                return await self._value(_json(part), query)
            case QueryKind.REGEX:
                matches = await self.engine.matches(_text(part), str(argument), MAX_MATCHES)
                return await _shown(part, matches, query.context)
            case QueryKind.SEARCH:
                matches = await self.engine.found(_text(part), str(argument), MAX_MATCHES)
                return await _shown(part, matches, query.context)
            case QueryKind.HEAD:
                return QueryFindings(head(_text(part), int(argument)).decode(), count_lines(part.body))
            case QueryKind.TAIL:
                return QueryFindings(tail(_text(part), int(argument)).decode(), count_lines(part.body))
            case QueryKind.COUNT:
                total = await self._count(part, Counted(str(argument)))
                return QueryFindings(str(total), total)

    async def _value(self, document: bytes, query: Query) -> QueryFindings:
        if query.kind is QueryKind.JMESPATH:
            result = await self.engine.jmespath(document, str(query.argument))
            value, text = await parsed(result), result.decode()
        else:
            value = value_at(await parsed(document), str(query.argument))
            text = await in_thread(compact_json, value)
        return QueryFindings(text, len(value) if isinstance(value, list | dict) else int(value is not None))

    async def _count(self, part: Part, unit: Counted) -> int:
        match unit:
            case Counted.BYTES:
                return len(part.body)
            case Counted.LINES:
                return count_lines(_text(part))
            case Counted.CHARACTERS:
                return len(_text(part).decode())
            case Counted.TOKENS:
                return await in_thread(self.results.tokens.count, _text(part).decode())
            case Counted.ITEMS:
                value = await parsed(_json(part))
                return len(value) if isinstance(value, list | dict) else 1


async def _shown(part: Part, matches: Matches, context: int) -> QueryFindings:
    text = await in_thread(matches_by_line, part.body, matches.spans, context)
    return QueryFindings(text, len(matches.spans), matches.complete)


def _text(part: Part) -> bytes:
    if part.kind is PartKind.BINARY:
        raise InvalidParameterError(
            "This part is binary: only its bytes can be counted, and its pages read.", field="part"
        )
    return part.body


def _json(part: Part) -> bytes:
    if part.kind is not PartKind.JSON:
        raise InvalidParameterError(
            "This part is not JSON: use regex, search, head, tail or count.", field="part"
        )
    if len(part.body) > _MAX_JSON_BYTES:
        raise InvalidParameterError(
            f"JSON of more than {_MAX_JSON_BYTES} bytes is not queried: use search, or read its pages.",
            field="part",
        )
    return part.body
