"""``window_list`` as SQL: which windows match, in which order, and how many there are.

A list is read in one of three ways, the first that applies:

- *indexed*: from an index in the list's order, if the index alone decides what matches; the page may begin anywhere;
- *gathered*: all matches are collected and sorted, if counts say that there are few;
- *walked*: the first rows in the list's order are checked one by one: a few at first and, if many should match, as
  many more as can be checked in the time that gathering would take. If they do not contain a whole page, matches are
  rarer, or further on: then all matches are gathered by the most selective index.

So a page takes a few ms among a million windows, and totals are exact where counting takes no longer than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import Connection, Row, Select

from cwm.adapters.sql.rows import window_of
from cwm.adapters.sql.window_list import terms
from cwm.adapters.sql.window_list.statements import ESCAPE, Kind, Statements, statements_of
from cwm.domain.names import MAX_DESCRIPTION_CHARS, is_storable
from cwm.domain.window import WindowList, WindowQuery, WindowSort

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_LAST_OFFSET: Final = 2**62
# Case folding turns one character into at most three. SQLite refuses patterns of 50,000 bytes.
_LONGEST_SEARCHABLE: Final = 3 * (MAX_DESCRIPTION_CHARS + 200)


@dataclass(frozen=True, slots=True)
class Effort:
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
    """One search. ``held`` is the number of the tenant's windows with each term of the query, and in all."""

    connection: Connection
    tenant: str
    query: WindowQuery
    held: dict[str, int]
    effort: Effort

    def found(self) -> WindowList:
        if self._statements.is_indexed:
            return self._indexed()
        if self._few:
            return self._gathered()
        return self._walked() or self._gathered()

    def _indexed(self) -> WindowList:
        """The page, read from an index that contains exactly the matches."""
        total = self._known_total
        counted = self._count(self._statements.counted) if total is None else total
        exact = total is not None or counted <= self.effort.counted
        found = self._read(self._statements.indexed)
        return self._listed(found, min(counted, total or self.effort.counted), exact=exact)

    def _walked(self) -> WindowList | None:
        """The page, if the first rows in its order contain all of it and one more match."""
        first = self.effort.looked_up if self._statements.looks_up else self.effort.walked
        found = self._read(self._statements.walked, {"passed": 0, "walked": first})
        if len(found) <= self.query.limit:
            further = self._further
            if further <= first:
                return None
            passed = 0 if found or self.query.offset else first
            found = self._read(self._statements.walked, {"passed": passed, "walked": further - passed})
        if len(found) <= self.query.limit:
            return None
        return self._listed(found, found[0][-1], exact=self._known_total is not None)

    @property
    def _further(self) -> int:
        """The number of rows that can be walked in the time of gathering; 0 if they would not contain a page."""
        if self._grams is None:
            return 0
        windows = self.held[terms.ALL]
        pieces = self._grams[: len(self._grams) - len(self._named)]
        matching = terms.about(self.connection, pieces) if pieces else windows
        matching *= prod(self.held[term] / windows for term in self._named)
        a_match = self.effort.passed / (2 if self._statements.looks_up else 1)
        rows = min(int(matching * a_match), self.effort.walked_on)
        return rows if rows * matching / windows > self.query.offset + self.query.limit else 0

    @cached_property
    def _grams(self) -> list[int] | None:
        """The numbers that find matching windows; None if the query has too few."""
        return terms.asked(self.tenant, self._said, self._named)

    @property
    def _few(self) -> bool:
        return min(self.held.values()) <= self.effort.gathered

    def _gathered(self) -> WindowList:
        """The page from all matches, collected by the most selective index."""
        statements, dialect = self._statements, self.connection.dialect.name
        grams = None if self._few else self._grams
        if grams is None:
            page, count = statements.gathered, statements.gathered_count
        else:
            page, count = statements.gathered_by_grams(dialect), statements.gathered_by_grams_count(dialect)
        asked = {} if grams is None else {"grams": terms.asked_as(dialect, grams)}
        found = self._read(page, asked)
        if not found and (self.query.offset or self.query.after):
            return self._listed([], self._count(count, asked))
        return self._listed(found, found[0][-1] if found else 0)

    @cached_property
    def _named(self) -> list[str]:
        """The terms of the query, the rarest first."""
        return sorted((term for term in self.held if term != terms.ALL), key=lambda term: self.held[term])

    @property
    def _said(self) -> str:
        return (self.query.search or "").casefold()

    @cached_property
    def _statements(self) -> Statements:
        query = self.query
        return statements_of(
            Kind(
                sort_by=query.sort_by,
                descending=query.descending,
                terms=len(self._named),
                tags=len(query.tags),
                model=query.model is not None,
                search=bool(query.search),
                created_after=query.created_after is not None,
                created_before=query.created_before is not None,
                onward=query.after is not None,
                total_known=self._known_total is not None,
                # For few windows, reading the span takes longer than checking them.
                spanned=len(self._named) > 1 and query.sort_by is WindowSort.CREATED_AT and not self._few,
            )
        )

    @cached_property
    def _values(self) -> dict[str, Any]:
        """Values of all parameters that a statement may have."""
        query, mark = self.query, self.query.after
        most = query.offset + max(query.limit + 1, self.effort.seen)
        values: dict[str, Any] = {
            "tenant": self.tenant,
            "model": query.model,
            "search": _escaped(self._said),
            "created_after": _utc(query.created_after),
            "created_before": _utc(query.created_before),
            "limit": query.limit + 1,
            "offset": min(query.offset, _LAST_OFFSET),
            "total": self._known_total,
            "counted": self.effort.counted + 1,
            "seen": min(most, _LAST_OFFSET),
        }
        values |= {f"term_{number}": term for number, term in enumerate(self._named)}
        values |= {f"tag_{number}": _escaped(terms.exact(tag)) for number, tag in enumerate(query.tags)}
        if mark is not None:
            values |= {"marked": mark.value, "marked_name": mark.name}
        return values | self._span(values)

    def _span(self, values: dict[str, Any]) -> dict[str, Any]:
        """The time range in which windows have all terms; it excludes, for example, the time after a model was retired."""
        if not self._statements.kind.spanned:
            return {}
        times = self.connection.execute(self._statements.spans, values).one()
        here = len(self._named)
        return {"first": max(times[:here]), "last": min(times[here:])}

    @property
    def _known_total(self) -> int | None:
        """The exact total if it is stored, which is only so for all windows and for single terms."""
        bounded = self.query.created_after is not None or self.query.created_before is not None
        if self.query.search or bounded or len(self.held) > 2:
            return None
        return min(self.held.values())

    def _read(self, page: Select[Any], more: Mapping[str, Any] = _NOTHING) -> Sequence[Row[Any]]:
        return self.connection.execute(page, {**self._values, **more}).all()

    def _count(self, count: Select[Any], more: Mapping[str, Any] = _NOTHING) -> int:
        return int(self.connection.execute(count, {**self._values, **more}).scalar_one())

    def _listed(self, found: Sequence[Row[Any]], total: int, *, exact: bool = True) -> WindowList:
        page = [window_of(row) for row in found[: self.query.limit]]
        return WindowList(page, total, has_more=len(found) > len(page), total_exact=exact)


def _terms(query: WindowQuery) -> list[str]:
    of_model = [] if query.model is None else [terms.model_term(query.model)]
    return list(dict.fromkeys((*map(terms.tag_term, query.tags), *of_model)))


def _can_match(query: WindowQuery) -> bool:
    """Whether both databases accept all values of the query."""
    search = (query.search or "").casefold()
    asked = (search, query.model or "", *query.tags)
    return len(search) <= _LONGEST_SEARCHABLE and all(map(is_storable, asked))


def _escaped(text: str) -> str:
    """The text as a literal in a LIKE pattern."""
    for special in (ESCAPE, "%", "_"):
        text = text.replace(special, f"{ESCAPE}{special}")
    return text


def _utc(bound: datetime | None) -> datetime | None:
    """A bound without a zone is UTC, like every stored timestamp."""
    return bound if bound is None or bound.tzinfo else bound.replace(tzinfo=UTC)
