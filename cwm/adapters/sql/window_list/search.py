"""``window_list`` as SQL: which windows match, in which order, and how many there are.

A list is read in one of three ways, the first that applies:

- *indexed*: from an index in the list's order, if the index alone decides what matches; the page may begin anywhere;
- *gathered*: all matches are collected and sorted, if counts say that there are few;
- *walked*: the first rows in the list's order are checked one by one: a few at first and, if many should match, as
  many more as can be checked in the time that gathering would take. If they do not contain a whole page, matches are
  rarer, or further on: then all matches are gathered by the most selective index.

So a page takes a few ms among a million windows, and totals are exact where counting takes no longer than that.

A reader's list is that of the circles that it is in. If they hold only some of the tenant's windows, each that is not
empty is searched for itself, and the pages are merged; if the query has a filter, they are first looked for together, with a
check of each row's circle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import Connection, Row, Select

from cwm.adapters.sql.rows import window_of
from cwm.adapters.sql.window_list import terms
from cwm.adapters.sql.window_list.statements import ESCAPE, WHOLE, QueryShape, Statements, statements_of
from cwm.domain.errors import InvalidParameterError
from cwm.domain.names import MAX_DESCRIPTION_CHARS, is_storable
from cwm.domain.window import WindowList, WindowQuery, WindowSort

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_LAST_OFFSET: Final = 2**62
_MERGED_OFFSET: Final = 10_000
# Case folding turns one character into at most three. SQLite refuses patterns of 50,000 bytes.
_LONGEST_SEARCHABLE: Final = 3 * (MAX_DESCRIPTION_CHARS + 200)


@dataclass(frozen=True, slots=True)
class RowLimits:
    """Limits on the rows of a list: ``counted`` to count, ``gathered`` to sort, ``walked`` to check one by one.

    A walk also counts matches, up to ``seen`` beyond the offset. ``looked_up`` replaces ``walked`` if each row needs a
    look-up in a second table. ``passed`` is the number of rows that are walked in the time of gathering one match; if
    gathering takes longer than a walk, up to ``walked_on`` rows are walked first.
    """

    counted: int = 10_000
    gathered: int = 5_000
    walked: int = 3_000
    looked_up: int = 1_500
    seen: int = 100
    passed: int = 3
    walked_on: int = 20_000


ROW_LIMITS: Final = RowLimits()


def find(
    connection: Connection, tenant: str, query: WindowQuery, limits: RowLimits = ROW_LIMITS
) -> WindowList:
    """One page of the tenant's windows. CWM-1003 for an offset that is too large for merged pages."""
    circles = {terms.circle_term(circle): circle for circle in query.circles or ()}
    if not _can_match(query):
        return WindowList([], 0, has_more=False)
    counts = terms.counts(connection, tenant, [*_terms(query), *circles])
    circle_sizes = {term: windows for term in circles if (windows := counts.pop(term))}
    if not all(counts.values()) or (query.circles is not None and not circle_sizes):
        return WindowList([], 0, has_more=False)
    search = _Search(connection, tenant, query, counts, limits)
    if query.circles is None or sum(circle_sizes.values()) == counts[terms.ALL]:
        return search.listed(search.page())
    own = {circles[term]: windows for term, windows in circle_sizes.items()}
    if (len(counts) > 1 or query.search) and (page := replace(search, within=own).found_soon()):
        return search.listed(page)
    if query.offset > _MERGED_OFFSET and len(own) > 1:
        raise InvalidParameterError(
            f"offset: at most {_MERGED_OFFSET} where windows of several circles are listed; page with next_cursor.",
            field="offset",
        )
    each = [
        replace(search, circle=circle, counts=counts | {terms.circle_term(circle): windows})
        for circle, windows in own.items()
    ]
    if len(each) == 1:
        return each[0].listed(each[0].page())
    to_its_end = replace(query, limit=query.offset + query.limit, offset=0)
    page = _merged(query, [replace(one, query=to_its_end, keys_only=True).page() for one in each])
    return search.listed(replace(page, rows=_whole(connection, tenant, page.rows)))


def _whole(connection: Connection, tenant: str, keys: Sequence[Row[Any]]) -> Sequence[Row[Any]]:
    """The windows' rows, in the order of their keys."""
    if not keys:
        return []
    values = {"tenant": tenant, "names": [row.name for row in keys]}
    by_name = {row.name: row for row in connection.execute(WHOLE, values)}
    return [by_name[row.name] for row in keys if row.name in by_name]


@dataclass(frozen=True, slots=True)
class _Page:
    """Rows of windows, or of their sort keys, and what :class:`WindowList` says of them."""

    rows: Sequence[Row[Any]]
    total: int
    has_more: bool
    exact: bool


def _merged(query: WindowQuery, pages: Sequence[_Page]) -> _Page:
    """One page from the first ones of several lists, each of which reaches to its end."""
    width = 1 if query.sort_by is WindowSort.NAME else 2
    rows = sorted(
        (row for page in pages for row in page.rows), key=lambda row: row[:width], reverse=query.descending
    )
    end = query.offset + query.limit
    return _Page(
        rows[query.offset : end],
        sum(page.total for page in pages),
        has_more=len(rows) > end or any(page.has_more for page in pages),
        exact=all(page.exact for page in pages),
    )


@dataclass(frozen=True)
class _Search:
    """One search. ``counts`` is the number of the tenant's windows with each term of the query, and in all.

    The windows are those in ``circle``, whose term is among the counts; or those ``within`` some circles, which each row
    is checked for, with the number of windows in each; or all.
    """

    connection: Connection
    tenant: str
    query: WindowQuery
    counts: dict[str, int]
    limits: RowLimits
    circle: str | None = None
    within: Mapping[str, int] = field(default_factory=dict)
    keys_only: bool = False

    def listed(self, page: _Page) -> WindowList:
        """The page's windows, without those that came into another circle since they were counted."""
        windows, circles = [window_of(row) for row in page.rows], self.query.circles
        visible = [window for window in windows if circles is None or window.circle in circles]
        return WindowList(visible, page.total, page.has_more, page.exact)

    def found_soon(self) -> _Page | None:
        """The page, unless it may take collecting all windows of a term."""
        fewest = self.limits.gathered // (2 if self._statements.looks_up else 1)
        if min(self.counts.values()) <= fewest:
            return self._gathered()
        return self._walked() or (None if self._grams is None else self._gathered())

    def page(self) -> _Page:
        if self._statements.is_indexed:
            return self._indexed()
        if self._few:
            return self._gathered()
        return self._walked() or self._gathered()

    def _indexed(self) -> _Page:
        """The page, read from an index that contains exactly the matches."""
        total = self._known_total
        counted = self._count(self._statements.counted) if total is None else total
        exact = total is not None or counted <= self.limits.counted
        rows = self._read(self._statements.indexed)
        return self._page(rows, min(counted, total or self.limits.counted), exact=exact)

    def _walked(self) -> _Page | None:
        """The page, if the first rows in its order contain all of it and one more match."""
        first = self.limits.looked_up if self._statements.looks_up else self.limits.walked
        rows = self._read(self._statements.walked, {"passed": 0, "walked": first})
        if len(rows) <= self.query.limit:
            further = self._further
            if further <= first:
                return None
            passed = 0 if rows or self.query.offset else first
            rows = self._read(self._statements.walked, {"passed": passed, "walked": further - passed})
        if len(rows) <= self.query.limit:
            return None
        return self._page(rows, rows[0][-1], exact=self._known_total is not None)

    @property
    def _further(self) -> int:
        """The number of rows that can be walked in the time of gathering; 0 if they would not contain a page."""
        if self._grams is None:
            return 0
        windows = self.counts[terms.ALL]
        pieces = self._grams[: len(self._grams) - len(self._lasting_terms)]
        matching = terms.estimate(self.connection, pieces) if pieces else windows
        matching *= prod(self.counts[term] / windows for term in self._terms)
        matching *= sum(self.within.values()) / windows if self.within else 1
        a_match = self.limits.passed / (2 if self._statements.looks_up else 1)
        rows = min(int(matching * a_match), self.limits.walked_on)
        return rows if rows * matching / windows > self.query.offset + self.query.limit else 0

    @cached_property
    def _grams(self) -> list[int] | None:
        """The numbers that find matching windows; None if the query has too few."""
        return terms.search_grams(self.tenant, self._search_text, self._lasting_terms)

    @property
    def _few(self) -> bool:
        return min(self.counts.values()) <= self.limits.gathered

    def _gathered(self) -> _Page:
        """The page from all matches, collected by the most selective index."""
        statements, dialect = self._statements, self.connection.dialect.name
        grams = None if self._few else self._grams
        if grams is None:
            page, count = statements.gathered, statements.gathered_count
        else:
            page, count = statements.gathered_by_grams(dialect), statements.gathered_by_grams_count(dialect)
        parameters = {} if grams is None else {"grams": terms.gram_parameter(dialect, grams)}
        rows = self._read(page, parameters)
        if not rows and (self.query.offset or self.query.after):
            return self._page([], self._count(count, parameters))
        return self._page(rows, rows[0][-1] if rows else 0)

    @cached_property
    def _terms(self) -> list[str]:
        """The terms of the query, the rarest first."""
        return sorted((term for term in self.counts if term != terms.ALL), key=lambda term: self.counts[term])

    @property
    def _lasting_terms(self) -> list[str]:
        """The terms by which pieces are found too: all but the circle."""
        circle = None if self.circle is None else terms.circle_term(self.circle)
        return [term for term in self._terms if term != circle]

    @property
    def _search_text(self) -> str:
        return (self.query.search or "").casefold()

    @cached_property
    def _statements(self) -> Statements:
        query = self.query
        return statements_of(
            QueryShape(
                sort_by=query.sort_by,
                descending=query.descending,
                terms=len(self._terms),
                tags=len(query.tags),
                model=query.model is not None,
                circle=self.circle is not None,
                within=bool(self.within),
                keys_only=self.keys_only,
                search=bool(query.search),
                created_after=query.created_after is not None,
                created_before=query.created_before is not None,
                onward=query.after is not None,
                total_known=self._known_total is not None,
                # For few windows, reading the span takes longer than checking them.
                spanned=len(self._terms) > 1 and query.sort_by is WindowSort.CREATED_AT and not self._few,
            )
        )

    @cached_property
    def _values(self) -> dict[str, Any]:
        """Values of all parameters that a statement may have."""
        query, mark = self.query, self.query.after
        most = query.offset + max(query.limit + 1, self.limits.seen)
        values: dict[str, Any] = {
            "tenant": self.tenant,
            "model": query.model,
            "circle": self.circle,
            "circles": [*self.within],
            "search": _escaped(self._search_text),
            "created_after": _utc(query.created_after),
            "created_before": _utc(query.created_before),
            "limit": query.limit + 1,
            "offset": min(query.offset, _LAST_OFFSET),
            "total": self._known_total,
            "counted": self.limits.counted + 1,
            "seen": min(most, _LAST_OFFSET),
        }
        values |= {f"term_{number}": term for number, term in enumerate(self._terms)}
        values |= {f"tag_{number}": _escaped(terms.exact(tag)) for number, tag in enumerate(query.tags)}
        if mark is not None:
            values |= {"marked": mark.value, "marked_name": mark.name}
        return values | self._span(values)

    def _span(self, values: dict[str, Any]) -> dict[str, Any]:
        """The time range in which windows have all terms; it excludes, for example, the time after a model was retired."""
        if not self._statements.shape.spanned:
            return {}
        times = self.connection.execute(self._statements.spans, values).one()
        here = len(self._terms)
        return {"first": max(times[:here]), "last": min(times[here:])}

    @property
    def _known_total(self) -> int | None:
        """The exact total if it is stored, which is only so for all windows and for single terms."""
        bounded = self.query.created_after is not None or self.query.created_before is not None
        if self.query.search or bounded or self.within or len(self.counts) > 2:
            return None
        return min(self.counts.values())

    def _read(self, page: Select[Any], more: Mapping[str, Any] = _NOTHING) -> Sequence[Row[Any]]:
        return self.connection.execute(page, {**self._values, **more}).all()

    def _count(self, count: Select[Any], more: Mapping[str, Any] = _NOTHING) -> int:
        return int(self.connection.execute(count, {**self._values, **more}).scalar_one())

    def _page(self, rows: Sequence[Row[Any]], total: int, *, exact: bool = True) -> _Page:
        page = rows[: self.query.limit]
        return _Page(page, total, has_more=len(rows) > len(page), exact=exact)


def _terms(query: WindowQuery) -> list[str]:
    of_model = [] if query.model is None else [terms.model_term(query.model)]
    return list(dict.fromkeys((*map(terms.tag_term, query.tags), *of_model)))


def _can_match(query: WindowQuery) -> bool:
    """Whether both databases accept all values of the query."""
    search = (query.search or "").casefold()
    texts = (search, query.model or "", *query.tags)
    return len(search) <= _LONGEST_SEARCHABLE and all(map(is_storable, texts))


def _escaped(text: str) -> str:
    """The text as a literal in a LIKE pattern."""
    for special in (ESCAPE, "%", "_"):
        text = text.replace(special, f"{ESCAPE}{special}")
    return text


def _utc(bound: datetime | None) -> datetime | None:
    """A bound without a zone is UTC, like every stored timestamp."""
    return bound if bound is None or bound.tzinfo else bound.replace(tzinfo=UTC)
