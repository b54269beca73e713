"""``window_list`` as SQL: which windows match, in which order, and how many they are.

A list is read from one of three places, the first that will do:

- an index in the list's own order, when that index alone says what matches: its page, wherever it begins;
- all that match, sorted, when a count says that there are few;
- the first so many rows in the list's order, looked at one by one. When they hold no whole page, what matches is
  rarer, or elsewhere: then all that match, sorted, found by the index that knows them best.

So a page takes a few ms among a million windows, and totals are exact as long as counting takes no longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Row,
    ScalarSelect,
    Select,
    Table,
    and_,
    func,
    literal,
    select,
    tuple_,
)

from cwm.adapters.sql import window_terms as terms
from cwm.adapters.sql.rows import WINDOW, window_of
from cwm.adapters.sql.tables import window_search, windows
from cwm.adapters.sql.tables import window_terms as termed
from cwm.domain.names import MAX_DESCRIPTION_CHARS, is_storable
from cwm.domain.window import WindowList, WindowQuery, WindowSort

_LAST_OFFSET: Final = 2**62
# Case folding makes a character three at most. SQLite refuses patterns of 50,000 bytes.
_LONGEST_SEARCHABLE: Final = 3 * (MAX_DESCRIPTION_CHARS + 200)

_SORTED_BY: Final = {
    WindowSort.NAME: "name",
    WindowSort.CREATED_AT: "created_at",
    WindowSort.TOKEN_COUNT: "token_count",
    WindowSort.SIZE: "total_size_bytes",
}


@dataclass(frozen=True, slots=True)
class Effort:
    """How many rows a list may look at: to count them, to sort them, and one by one in its own order.

    While it does that last it counts matches too, up to ``seen`` more than it passes over.
    """

    counted: int = 10_000
    gathered: int = 5_000
    walked: int = 3_000
    seen: int = 100


EFFORT: Final = Effort()


def find(connection: Connection, tenant: str, query: WindowQuery, effort: Effort = EFFORT) -> WindowList:
    """One page of the tenant's windows."""
    if not _can_match(query):
        return WindowList([], 0, has_more=False)
    held = terms.counted(connection, tenant, _terms(query))
    if not all(held.values()):
        return WindowList([], 0, has_more=False)
    return _Search(connection, tenant, query, held, effort).found()


@dataclass(frozen=True)
class _Search:
    """``held`` says how many windows the tenant has with each term of the query, and in all."""

    connection: Connection
    tenant: str
    query: WindowQuery
    held: dict[str, int]
    effort: Effort

    def found(self) -> WindowList:
        if not self._unindexed(self._source):
            return self._indexed()
        return (None if self._few else self._walked()) or self._gathered()

    def _indexed(self) -> WindowList:
        """The page, read from an index that holds what matches and nothing else."""
        total = self._known_total
        counted = self._counted() if total is None else total
        exact = total is not None or counted <= self.effort.counted
        found = self._read(self._rows(self._source).subquery())
        return self._listed(found, min(counted, total or self.effort.counted), exact=exact)

    def _walked(self) -> WindowList | None:
        """The page, if the first rows in its order hold all of it and one more."""
        rows = self._rows(self._source, lean=False).where(*self._after(self._source))
        walked = rows.order_by(*self._order(self._source)).limit(self.effort.walked).subquery()
        rows = select(*(walked.c[key] for key in self._keys)).where(*self._unindexed(walked))
        most = self.query.offset + max(self.query.limit + 1, self.effort.seen)
        matching = rows.limit(min(most, _LAST_OFFSET)).cte()
        total = self._known_total
        found = self._read(matching, literal(total) if total is not None else _count(matching))
        if len(found) <= self.query.limit:
            return None
        return self._listed(found, found[0][-1], exact=total is not None)

    @property
    def _few(self) -> bool:
        return min(self.held.values()) <= self.effort.gathered

    def _gathered(self) -> WindowList:
        """The page of all that match, which are found by what narrows them down the most."""
        holding = None
        if not self._few:
            said = (self.query.search or "").casefold()
            holding = terms.holding(self.connection, self.tenant, said, self._named)
        source: Table = window_search if holding is not None or self._rarest is None else termed
        rows = self._rows(source, placed=holding is None).where(*self._unindexed(source))
        matching = (rows if holding is None else rows.where(holding)).cte()
        found = self._read(matching, _count(matching))
        if not found and (self.query.offset or self.query.after):
            return self._listed([], self.connection.execute(select(_count(matching))).scalar_one())
        return self._listed(found, found[0][-1] if found else 0)

    # where a list is read

    @cached_property
    def _rarest(self) -> str | None:
        return min(self._named, key=lambda term: self.held[term], default=None)

    @property
    def _named(self) -> list[str]:
        return [term for term in self.held if term != terms.ALL]

    @cached_property
    def _source(self) -> Table:
        """The table with an index in the list's order: of one term's windows where there is one.

        Looking for more than that, the rows of ``window_search`` tell at once what those of a term must look up; but in
        the order of time it pays to begin where the term does.
        """
        alone = len(self._named) == 1 and not self.query.search
        by_time = self.query.sort_by is WindowSort.CREATED_AT and self._named
        return termed if alone or by_time else window_search

    def _rows(self, source: Table, *, lean: bool = True, placed: bool = True) -> Select[Any]:
        """Rows of the source: what they are sorted by, or all of each.

        ``placed`` False keeps databases from looking for the tenant's rows first where there is a better index.
        """
        columns = [source.c[key] for key in self._keys] if lean else list(source.c)
        tenant = source.c.tenant if placed else source.c.tenant.concat("")
        rows = select(*columns).where(tenant == self.tenant)
        if source is termed:
            rows = rows.where(termed.c.term == self._rarest, *self._common)
        if self.query.sort_by is WindowSort.CREATED_AT:
            rows = rows.where(*self._bounds(source))
        return rows

    @cached_property
    def _common(self) -> list[ColumnElement[bool]]:
        """The time in which windows had each of several terms: a model that was retired is long past.

        Few windows are looked at in less time than this is found out.
        """
        named = self._named
        if len(named) < 2 or self._few:
            return []
        ends = [
            self._end(term, at)
            for at in (termed.c.created_at.asc(), termed.c.created_at.desc())
            for term in named
        ]
        times = self.connection.execute(select(*ends)).one()
        first, last = max(times[: len(named)]), min(times[len(named) :])
        return [termed.c.created_at >= first, termed.c.created_at <= last]

    def _end(self, term: str, order: ColumnElement[Any]) -> ScalarSelect[Any]:
        mine = select(termed.c.created_at).where(termed.c.tenant == self.tenant, termed.c.term == term)
        return mine.order_by(order).limit(1).scalar_subquery()

    def _bounds(self, of: FromClause) -> list[ColumnElement[bool]]:
        clauses = []
        if self.query.created_after is not None:
            clauses.append(of.c.created_at > _utc(self.query.created_after))
        if self.query.created_before is not None:
            clauses.append(of.c.created_at < _utc(self.query.created_before))
        return clauses

    def _unindexed(self, of: FromClause) -> list[ColumnElement[bool]]:
        """What is left to look at in each row of the source, or of some rows of it."""
        clauses = [] if self.query.sort_by is WindowSort.CREATED_AT else self._bounds(of)
        if "words" in of.c:
            clauses += [_contains(of.c.tags, terms.exact(tag)) for tag in self.query.tags]
            if self.query.model is not None:
                clauses.append(of.c.model == self.query.model)
            if self.query.search:
                clauses.append(_contains(of.c.words, self.query.search.casefold()))
            return clauses
        others = [term for term in self._named if term != self._rarest]
        clauses += [_has_term(of, term) for term in others]
        if self.query.search:
            clauses.append(_says(of, self.query.search.casefold()))
        return clauses

    # what a list tells

    @property
    def _known_total(self) -> int | None:
        """Counts are kept of one term alone."""
        bounded = self.query.created_after is not None or self.query.created_before is not None
        if self.query.search or bounded or len(self.held) > 2:
            return None
        return min(self.held.values())

    def _counted(self) -> int:
        """What an index alone finds: up to a bound, and one more."""
        some = self._rows(self._source).limit(self.effort.counted + 1).subquery()
        return int(self.connection.execute(select(_count(some))).scalar_one())

    def _read(self, found: FromClause, *more: ColumnElement[Any]) -> Sequence[Row[Any]]:
        """Windows of the page and one after it, each followed by ``more``."""
        chosen = (
            select(found)
            .where(*self._after(found))
            .order_by(*self._order(found))
            .limit(self.query.limit + 1)
            .offset(min(self.query.offset, _LAST_OFFSET))
            .subquery()
        )
        whole = select(*WINDOW, *more).join(
            chosen, and_(windows.c.tenant == self.tenant, windows.c.name == chosen.c.name)
        )
        return self.connection.execute(whole.order_by(*self._order(chosen))).all()

    def _listed(self, found: Sequence[Row[Any]], total: int, *, exact: bool = True) -> WindowList:
        page = [window_of(row) for row in found[: self.query.limit]]
        return WindowList(page, total, has_more=len(found) > len(page), total_exact=exact)

    @property
    def _keys(self) -> list[str]:
        return list(dict.fromkeys((_SORTED_BY[self.query.sort_by], "name")))

    def _order(self, of: FromClause) -> list[ColumnElement[Any]]:
        return [of.c[key].desc() if self.query.descending else of.c[key].asc() for key in self._keys]

    def _after(self, of: FromClause) -> list[ColumnElement[bool]]:
        mark = self.query.after
        if mark is None:
            return []
        at = dict(zip(self._keys, (mark.value, mark.name), strict=False))
        keys = tuple_(*(of.c[key] for key in at))
        place = tuple_(*(literal(value, of.c[key].type) for key, value in at.items()))
        return [keys < place if self.query.descending else keys > place]


def _terms(query: WindowQuery) -> list[str]:
    of_model = [] if query.model is None else [terms.model_term(query.model)]
    return list(dict.fromkeys((*map(terms.tag_term, query.tags), *of_model)))


def _can_match(query: WindowQuery) -> bool:
    """Whether databases can be asked for all of it."""
    search = (query.search or "").casefold()
    asked = (search, query.model or "", *query.tags)
    return len(search) <= _LONGEST_SEARCHABLE and all(map(is_storable, asked))


def _count(of: FromClause) -> ScalarSelect[Any]:
    return select(func.count()).select_from(of).scalar_subquery()


def _contains(column: ColumnElement[Any], text: str) -> ColumnElement[bool]:
    return column.contains(text, autoescape=True)


# Looked up row by row: as a join, Postgres would sometimes read all windows of a term instead.


def _has_term(of: FromClause, term: str) -> ColumnElement[bool]:
    other = termed.alias()
    same = (other.c.tenant == of.c.tenant, other.c.created_at == of.c.created_at, other.c.name == of.c.name)
    return select(other.c.name).where(other.c.term == term, *same).scalar_subquery().is_not(None)


def _says(of: FromClause, text: str) -> ColumnElement[bool]:
    same = (window_search.c.tenant == of.c.tenant, window_search.c.name == of.c.name)
    said = select(window_search.c.id).where(*same, _contains(window_search.c.words, text))
    return said.scalar_subquery().is_not(None)


def _utc(bound: datetime) -> datetime:
    """A bound without a zone is meant in UTC, as every stored timestamp is."""
    return bound if bound.tzinfo else bound.replace(tzinfo=UTC)
