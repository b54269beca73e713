"""Which tables a statement reads or changes without saying whose rows are meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from sqlalchemy import BindParameter, Column, Delete, Insert, Select, Table, Update
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BinaryExpression, BooleanClauseList, ClauseElement, Grouping
from sqlalchemy.sql.selectable import Alias, CompoundSelect, FromClause, Join

Term = tuple[FromClause, str]


def unscoped(statement: ClauseElement) -> list[str]:
    """Names of the tenants' tables whose ``tenant`` is bound to no value, in this statement or one inside of it."""
    return [fault for each, outer in _selections(statement, ()) for fault in _faults(each, outer)]


def _selections(
    element: ClauseElement, outer: tuple[ClauseElement, ...]
) -> Iterator[tuple[ClauseElement, tuple[ClauseElement, ...]]]:
    """Every select, update and delete, with those around it."""
    if isinstance(element, Select | Update | Delete):
        yield element, outer
        outer = (*outer, element)
    inside: Iterable[Any] = element.get_children()
    if isinstance(element, Select | Update | Delete | Insert | CompoundSelect):
        inside = [*inside, *element._independent_ctes]
    for child in inside:
        yield from _selections(child, outer)


def _faults(statement: ClauseElement, outer: tuple[ClauseElement, ...]) -> list[str]:
    bound = _bound([condition for each in (statement, *outer) for condition in _conditions(each)])
    return [
        table.name
        for source in _sources(statement)
        if (table := _table(source)) is not None and "tenant" in table.c and (source, "tenant") not in bound
    ]


def _sources(statement: ClauseElement) -> Iterator[FromClause]:
    froms = statement.get_final_froms() if isinstance(statement, Select) else [statement.table]  # type: ignore[attr-defined]
    for source in froms:
        yield from _leaves(source)


def _leaves(source: FromClause) -> Iterator[FromClause]:
    if isinstance(source, Join):
        yield from _leaves(source.left)
        yield from _leaves(source.right)
    else:
        yield source


def _table(source: FromClause) -> Table | None:
    """None for a subquery, which is looked at as a statement of its own."""
    inner = source.element if isinstance(source, Alias) else source
    return inner if isinstance(inner, Table) else None


def _conditions(statement: ClauseElement) -> Iterator[ClauseElement]:
    """What must hold of every row: the parts of an AND."""
    where = getattr(statement, "whereclause", None)
    if where is not None:
        yield from _parts(where)
    if isinstance(statement, Select):
        for source in statement.get_final_froms():
            yield from _joined(source)


def _joined(source: FromClause) -> Iterator[ClauseElement]:
    if isinstance(source, Join):
        yield from _joined(source.left)
        yield from _joined(source.right)
        if source.onclause is not None and not source.isouter:
            yield from _parts(source.onclause)


def _parts(condition: Any) -> Iterator[ClauseElement]:
    if isinstance(condition, Grouping):
        yield from _parts(cast("ClauseElement", condition.element))
    elif isinstance(condition, BooleanClauseList) and condition.operator is operators.and_:
        for part in condition.clauses:
            yield from _parts(cast("ClauseElement", part))
    else:
        yield condition


def _bound(conditions: Iterable[ClauseElement]) -> set[Term]:
    """The ``tenant`` columns that equal a value, or another column that does."""
    bound: set[Term] = set()
    alike: list[tuple[Term, Term]] = []
    for condition in conditions:
        if not isinstance(condition, BinaryExpression) or condition.operator is not operators.eq:
            continue
        left, right = _term(condition.left), _term(condition.right)
        if left is not None and right is not None:
            alike.append((left, right))
        for term, other in ((left, condition.right), (right, condition.left)):
            if term is not None and isinstance(other, BindParameter):
                bound.add(term)
    grew = True
    while grew:
        before = len(bound)
        bound |= {b for a, b in alike if a in bound} | {a for a, b in alike if b in bound}
        grew = len(bound) > before
    return bound


def _term(side: Any) -> Term | None:
    if isinstance(side, Column) and side.table is not None and side.key == "tenant":
        return side.table, "tenant"
    table = getattr(side, "table", None)
    return (table, "tenant") if table is not None and getattr(side, "key", None) == "tenant" else None
