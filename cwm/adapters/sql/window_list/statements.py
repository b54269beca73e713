"""The statements of ``window_list``, built once for every kind of query: building one takes longer than running it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    FromClause,
    ScalarSelect,
    Select,
    Table,
    and_,
    bindparam,
    func,
    select,
    tuple_,
)

from cwm.adapters.sql.rows import WINDOW
from cwm.adapters.sql.tables.window_lists import window_search
from cwm.adapters.sql.tables.window_lists import window_terms as termed
from cwm.adapters.sql.tables.windows import windows
from cwm.adapters.sql.window_list import terms
from cwm.domain.window import WindowSort

ESCAPE: Final = "/"

_SORTED_BY: Final = {
    WindowSort.NAME: "name",
    WindowSort.CREATED_AT: "created_at",
    WindowSort.TOKEN_COUNT: "token_count",
    WindowSort.SIZE: "total_size_bytes",
}
_SHAPES_CACHED: Final = 512


@dataclass(frozen=True, slots=True)
class QueryShape:
    """The parts of a query that change its statements; all other parts are parameters.

    ``terms`` and ``tags`` are numbers of them, ``circle`` means that one is a term, ``within`` that rows are checked for several, ``onward`` means after a mark, ``spanned`` means limited to the time
    range in which windows have all terms.
    """

    sort_by: WindowSort
    descending: bool
    terms: int
    tags: int
    model: bool
    circle: bool
    within: bool
    search: bool
    created_after: bool
    created_before: bool
    onward: bool
    total_known: bool
    keys_only: bool
    spanned: bool

    @property
    def by_time(self) -> bool:
        return self.sort_by is WindowSort.CREATED_AT


@lru_cache(_SHAPES_CACHED)
def statements_of(shape: QueryShape) -> Statements:
    return Statements(shape)


class Statements:
    """The statements of one kind of query.

    Their parameters: ``tenant``, ``term_0`` (the rarest) and on, ``tag_0`` and on, ``model``, ``circle``, ``search``,
    ``created_after``, ``created_before``, ``first`` and ``last`` (of a span), ``marked`` and ``marked_name``,
    ``offset``, ``limit``, ``total``, ``counted``, ``passed``, ``walked``, ``seen``, ``grams``.
    """

    def __init__(self, shape: QueryShape) -> None:
        self.shape = shape

    @cached_property
    def is_indexed(self) -> bool:
        """Whether an index of the source contains exactly the matches."""
        return not self._unindexed(self._source)

    @property
    def looks_up(self) -> bool:
        """Whether each row of the source needs a look-up in a second table."""
        return self._source is termed

    @cached_property
    def indexed(self) -> Select[Any]:
        """The page, from an index that contains exactly the matches."""
        return self._read(self._rows(self._source).subquery())

    @cached_property
    def counted(self) -> Select[Any]:
        """The number of matches in the index, up to a limit."""
        return select(_count(self._rows(self._source).limit(_number("counted")).subquery()))

    @cached_property
    def walked(self) -> Select[Any]:
        """The part of the page that is among some rows in its order, after an offset; each row has the total."""
        # Computed while each row is read: a filter outside would pass on all columns of all rows.
        matches = and_(*self._unindexed(self._source)).label("matches")
        rows = self._rows(self._source).add_columns(matches).where(*self._after(self._source))
        ordered = rows.order_by(*self._order(self._source))
        walked = ordered.limit(_number("walked")).offset(_number("passed")).subquery()
        rows = select(*(walked.c[key] for key in self._keys)).where(walked.c.matches)
        matching = rows.limit(_number("seen")).cte()
        return self._read(matching, _number("total") if self.shape.total_known else _count(matching))

    @cached_property
    def gathered(self) -> Select[Any]:
        """The page from all matches, found by their rarest term; each row has the total."""
        return self._page_of(self._gathered())

    @cached_property
    def gathered_count(self) -> Select[Any]:
        return select(_count(self._gathered()))

    def gathered_by_grams(self, dialect: str) -> Select[Any]:
        """:attr:`gathered` with matches found by their terms and the pieces of their words."""
        return self._by_grams[dialect][0]

    def gathered_by_grams_count(self, dialect: str) -> Select[Any]:
        return self._by_grams[dialect][1]

    @cached_property
    def spans(self) -> Select[Any]:
        """The first time of each term, then the last time of each."""
        ends = [
            select(termed.c.created_at)
            .where(termed.c.tenant == _TENANT, termed.c.term == _term(number))
            .order_by(order)
            .limit(1)
            .scalar_subquery()
            for order in (termed.c.created_at.asc(), termed.c.created_at.desc())
            for number in range(self.shape.terms)
        ]
        return select(*ends)

    @cached_property
    def _by_grams(self) -> dict[str, tuple[Select[Any], Select[Any]]]:
        statements = {}
        for dialect in ("sqlite", "postgresql"):
            rows = self._rows(window_search, placed=False).where(*self._unindexed(window_search))
            matching = rows.where(terms.holding(dialect)).cte()
            statements[dialect] = self._page_of(matching), select(_count(matching))
        return statements

    def _gathered(self) -> FromClause:
        source = termed if self.shape.terms else window_search
        return self._rows(source).where(*self._unindexed(source)).cte()

    def _page_of(self, matching: FromClause) -> Select[Any]:
        return self._read(matching, _count(matching))

    def _read(self, matching: FromClause, *more: ColumnElement[Any]) -> Select[Any]:
        """The page's windows and the next one, or only their sort keys, each with the columns ``more``."""
        page = (
            select(matching)
            .where(*self._after(matching))
            .order_by(*self._order(matching))
            .limit(_number("limit"))
            .offset(_number("offset"))
            .subquery()
        )
        if self.shape.keys_only:
            return select(*(page.c[key] for key in self._keys), *more).order_by(*self._order(page))
        whole = select(*WINDOW, *more).join(
            page, and_(windows.c.tenant == _TENANT, windows.c.name == page.c.name)
        )
        return whole.order_by(*self._order(page))

    @cached_property
    def _source(self) -> Table:
        """The table with an index in the list's order: ``window_terms`` for a single term, otherwise ``window_search``.

        A row of ``window_search`` has everything that a query checks, while a row of a term needs look-ups; but in the
        order of time ``window_terms`` is faster, because the list can begin where the term does.
        """
        alone = self.shape.terms == 1 and not self.shape.search
        lasting_terms = self.shape.terms - self.shape.circle
        return termed if alone or (self.shape.by_time and lasting_terms) else window_search

    def _rows(self, source: Table, *, placed: bool = True) -> Select[Any]:
        """The sort keys of the source's rows.

        With ``placed`` False the database cannot use the tenant's index, so it uses a more selective one.
        """
        columns = [source.c[key] for key in self._keys]
        tenant = source.c.tenant if placed else source.c.tenant.concat("")
        rows = select(*columns).where(tenant == _TENANT)
        if source is termed:
            rows = rows.where(termed.c.term == _term(0))
            if self.shape.spanned:
                rows = rows.where(
                    termed.c.created_at >= bindparam("first"), termed.c.created_at <= bindparam("last")
                )
        return rows.where(*self._bounds(source)) if self.shape.by_time else rows

    def _bounds(self, of: FromClause) -> list[ColumnElement[bool]]:
        clauses = []
        if self.shape.created_after:
            clauses.append(of.c.created_at > bindparam("created_after"))
        if self.shape.created_before:
            clauses.append(of.c.created_at < bindparam("created_before"))
        return clauses

    def _unindexed(self, of: FromClause) -> list[ColumnElement[bool]]:
        """The conditions that the source's index does not cover, to be checked in each row."""
        clauses = [] if self.shape.by_time else self._bounds(of)
        if "words" in of.c:
            if self.shape.model:
                clauses.append(of.c.model == bindparam("model"))
            if self.shape.circle:
                clauses.append(of.c.circle == bindparam("circle"))
            if self.shape.within:
                clauses.append(of.c.circle.in_(_CIRCLES))
            clauses += [_contains(of.c.tags, f"tag_{number}") for number in range(self.shape.tags)]
            if self.shape.search:
                clauses.append(_contains(of.c.words, "search"))
            return clauses
        clauses += [_has_term(of, _term(number)) for number in range(1, self.shape.terms)]
        if self.shape.search or self.shape.within:
            clauses.append(self._found(of))
        return clauses

    def _found(self, of: FromClause) -> ColumnElement[bool]:
        """The condition on a window's row of ``window_search``."""
        row = window_search.alias()
        clauses = [row.c.tenant == of.c.tenant, row.c.name == of.c.name]
        if self.shape.search:
            clauses.append(_contains(row.c.words, "search"))
        if self.shape.within:
            clauses.append(row.c.circle.in_(_CIRCLES))
        return select(row.c.id).where(*clauses).scalar_subquery().is_not(None)

    @property
    def _keys(self) -> list[str]:
        return list(dict.fromkeys((_SORTED_BY[self.shape.sort_by], "name")))

    def _order(self, of: FromClause) -> list[ColumnElement[Any]]:
        return [of.c[key].desc() if self.shape.descending else of.c[key].asc() for key in self._keys]

    def _after(self, of: FromClause) -> list[ColumnElement[bool]]:
        if not self.shape.onward:
            return []
        at = dict(zip(self._keys, ("marked", "marked_name"), strict=False))
        keys = tuple_(*(of.c[key] for key in at))
        place = tuple_(*(bindparam(name, type_=of.c[key].type) for key, name in at.items()))
        return [keys < place if self.shape.descending else keys > place]


_TENANT: Final[BindParameter[str]] = bindparam("tenant")
_CIRCLES: Final[BindParameter[Any]] = bindparam("circles", expanding=True)
WHOLE: Final = select(*WINDOW).where(
    windows.c.tenant == _TENANT, windows.c.name.in_(bindparam("names", expanding=True))
)
"""The windows with these names."""


def _term(number: int) -> BindParameter[str]:
    return bindparam(f"term_{number}")


def _number(name: str) -> BindParameter[int]:
    return bindparam(name, type_=BigInteger())


def _count(of: FromClause) -> ScalarSelect[Any]:
    return select(func.count()).select_from(of).scalar_subquery()


def _contains(column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
    return column.contains(bindparam(name), escape=ESCAPE)


# Scalar subqueries, evaluated per row: with a join Postgres sometimes reads all windows of a term.


def _has_term(of: FromClause, term: BindParameter[str]) -> ColumnElement[bool]:
    other = termed.alias()
    same = (other.c.tenant == of.c.tenant, other.c.created_at == of.c.created_at, other.c.name == of.c.name)
    return select(other.c.name).where(other.c.term == term, *same).scalar_subquery().is_not(None)
