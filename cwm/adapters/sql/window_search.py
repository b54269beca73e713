"""``window_list`` as SQL: which windows match, and in which order."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, FromClause, Select, and_, false, func, select

from cwm.adapters.sql.rows import WINDOW
from cwm.adapters.sql.tables import window_search, windows
from cwm.domain.names import MAX_DESCRIPTION_CHARS, is_storable
from cwm.domain.window import Window, WindowQuery, WindowSort

_LAST_OFFSET: Final = 2**62
# Case folding makes a character three at most. SQLite refuses patterns of 50,000 bytes.
_LONGEST_SEARCHABLE: Final = 3 * (MAX_DESCRIPTION_CHARS + 200)
# Keeps a term from matching across the end of the name.
_GAP: Final = "\x1f"

_SORTED_BY: Final = {
    WindowSort.NAME: "name",
    WindowSort.CREATED_AT: "created_at",
    WindowSort.TOKEN_COUNT: "token_count",
    WindowSort.SIZE: "total_size_bytes",
}


def search_values(window: Window) -> dict[str, Any]:
    """The row by which lists find the window."""
    return {
        "tenant": window.tenant,
        "name": window.name,
        "model": window.model,
        "created_at": window.created_at,
        "token_count": window.token_count,
        "total_size_bytes": window.total_size_bytes,
        "tags": " ".join(_exact(tag) for tag in window.tags),
        "words": f"{window.name}{_GAP}{window.description}".casefold(),
    }


def count(tenant: str, query: WindowQuery) -> Select[Any]:
    """How many windows match."""
    return select(func.count()).select_from(_found(tenant, query))


def page(tenant: str, query: WindowQuery) -> Select[Any]:
    """Windows of one page, each followed by how many match in all."""
    found = _found(tenant, query)
    total = select(func.count()).select_from(found).scalar_subquery()
    chosen = (
        select(found)
        .order_by(*_order(query, found))
        .limit(query.limit)
        .offset(min(query.offset, _LAST_OFFSET))
        .subquery()
    )
    return (
        select(*WINDOW, total)
        .join(chosen, and_(windows.c.tenant == tenant, windows.c.name == chosen.c.name))
        .order_by(*_order(query, chosen))
    )


def _found(tenant: str, query: WindowQuery) -> FromClause:
    """All of a tenant's are found by index, some by reading the narrow table once."""
    filters = _filters(query)
    source = window_search if filters else windows
    keys = [source.c[key] for key in _keys(query)]
    matching = select(*keys).where(source.c.tenant == tenant, *filters)
    return matching.cte() if filters else matching.subquery()


def _keys(query: WindowQuery) -> dict[str, None]:
    return dict.fromkeys((_SORTED_BY[query.sort_by], "name"))


def _order(query: WindowQuery, of: FromClause) -> list[ColumnElement[Any]]:
    return [of.c[key].desc() if query.descending else of.c[key].asc() for key in _keys(query)]


def _filters(query: WindowQuery) -> list[ColumnElement[bool]]:
    clauses = [_contains(window_search.c.tags, _exact(tag)) for tag in query.tags]
    if query.model is not None:
        clauses.append(window_search.c.model == query.model if is_storable(query.model) else false())
    if query.created_after is not None:
        clauses.append(window_search.c.created_at > _utc(query.created_after))
    if query.created_before is not None:
        clauses.append(window_search.c.created_at < _utc(query.created_before))
    if query.search:
        clauses.append(_contains(window_search.c.words, query.search.casefold()))
    return clauses


def _exact(tag: str) -> str:
    """A tag between marks, in hex: SQLite's LIKE would take upper for lower case."""
    return f"<{tag.encode(errors='surrogatepass').hex()}>"


def _contains(column: Column[Any], term: str) -> ColumnElement[bool]:
    if len(term) > _LONGEST_SEARCHABLE or not is_storable(term):
        return false()
    return column.contains(term, autoescape=True)


def _utc(bound: datetime) -> datetime:
    """A bound without a zone is meant in UTC, as every stored timestamp is."""
    return bound if bound.tzinfo else bound.replace(tzinfo=UTC)
