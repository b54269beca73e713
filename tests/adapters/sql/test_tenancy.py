"""Every statement says whose rows it means, but for those of methods that say ``of_every_tenant``."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import ClauseElement, and_, delete, exists, insert, or_, select, update

import cwm.adapters.sql
from cwm.adapters.sql.tables import metadata
from cwm.adapters.sql.tables.gateways import leases
from cwm.adapters.sql.tables.sessions import sessions
from cwm.adapters.sql.tables.windows import chunk_refs, windows
from tests.adapters.sql.scoping import unscoped

PACKAGE: Final = Path(cwm.adapters.sql.__file__).parent
BUILDERS: Final = {"select", "update", "delete"}
EVERY: Final = "_of_every_tenant"
# Not a tenant's; of words and terms there are only numbers that the tenant went into.
SHARED: Final = {
    "leases",
    "engine_noise",
    "engine_speeds",
    "engine_drains",
    "model_upgrades",
    "window_grams",
    "upstream_tools",
}
# The schema itself, and what asks a database whether it is there, and what time it is.
ABOUT_THE_DATABASE: Final = {"schema.py", "database.py", "tables.py", "clock.py"}

mine = windows.c.tenant == "a"
other = chunk_refs.alias("other")
inner = select(sessions.c.id).where(sessions.c.tenant == windows.c.tenant)


@pytest.mark.parametrize(
    "statement",
    [
        select(windows).where(mine, windows.c.name == "w"),
        select(windows).where(and_(mine, or_(windows.c.name == "w", windows.c.name == "v"))),
        select(windows).where(mine, inner.exists()),
        select(windows).join(sessions, sessions.c.tenant == windows.c.tenant).where(mine),
        select(windows.c.name).where(mine).union(select(sessions.c.id).where(sessions.c.tenant == "a")),
        select(other.c.hash).where(other.c.tenant == chunk_refs.c.tenant, chunk_refs.c.tenant == "a"),
        update(windows).where(mine).values(failure=None),
        delete(windows).where(mine),
        select(leases),
        insert(windows),
    ],
)
def test_a_statement_that_names_its_tenant_passes(statement: ClauseElement) -> None:
    assert unscoped(statement) == []


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        (select(windows), ["windows"]),
        (select(windows).where(windows.c.name == "w"), ["windows"]),
        (select(windows).where(or_(mine, windows.c.pinned)), ["windows"]),
        (select(windows).where(windows.c.tenant != "a"), ["windows"]),
        (select(windows, sessions).where(mine), ["sessions"]),
        (select(windows).join(sessions, sessions.c.id == windows.c.session_id).where(mine), ["sessions"]),
        (select(windows).where(mine, exists().where(sessions.c.id == windows.c.session_id)), ["sessions"]),
        (
            select(chunk_refs).where(chunk_refs.c.tenant == "a", other.c.hash == chunk_refs.c.hash),
            ["chunk_refs"],
        ),
        (select(select(windows).subquery().c.name), ["windows"]),
        (update(windows).values(failure=None), ["windows"]),
        (delete(windows).where(windows.c.name == "w"), ["windows"]),
        (insert(windows).from_select(["tenant"], select(sessions.c.tenant)), ["sessions"]),
    ],
)
def test_a_statement_that_leaves_its_tenant_open_is_found(statement: ClauseElement, told: list[str]) -> None:
    assert unscoped(statement) == told


def test_every_table_has_a_tenant_but_those_of_gateways_engines_and_upstreams() -> None:
    without = {table.name for table in metadata.sorted_tables if "tenant" not in table.c}
    assert without == SHARED


def test_what_builds_a_statement_names_a_tenant_or_says_that_it_means_all() -> None:
    """Those that no test runs, too."""
    faults = [
        f"{path.name}:{line} {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name not in ABOUT_THE_DATABASE
        for name, line in _silent(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert faults == []


def test_text_that_is_sql_is_about_no_table_of_a_tenant() -> None:
    """What SQLAlchemy does not build, this lint cannot read."""
    names = {table.name for table in metadata.sorted_tables} - SHARED
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _called(node) in {"text", "exec_driver_sql"}:
                written = ast.unparse(node.args[0])
                assert not any(name in written for name in names), f"{path.name}:{node.lineno} {written}"


def _silent(module: ast.Module) -> list[tuple[str, int]]:
    """Functions and constants with a statement in which nothing is of a tenant."""
    telling = _telling_parts(module)
    found = []
    for owner in _owners(module):
        name = getattr(owner, "name", "a constant")
        calls = [node for node in ast.walk(owner) if isinstance(node, ast.Call) and _called(node) in BUILDERS]
        builds = [call for call in calls if not all(isinstance(each, ast.Constant) for each in call.args)]
        about = {node.id for node in ast.walk(owner) if isinstance(node, ast.Name)}
        if builds and not name.endswith(EVERY) and not about & SHARED and not _tells(owner, telling):
            found.append((name, builds[0].lineno))
    return found


def _owners(module: ast.Module) -> list[ast.stmt]:
    owners: list[ast.stmt] = []
    for node in module.body:
        owners += node.body if isinstance(node, ast.ClassDef) else [node]
    return owners


def _telling_parts(module: ast.Module) -> set[str]:
    telling: set[str] = set()
    for node in [*module.body, *_owners(module)]:
        if not _tells(node, telling):
            continue
        if isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            telling |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.FunctionDef) and _is_a_part(node):
            telling.add(node.name)
    return telling


def _is_a_part(function: ast.FunctionDef) -> bool:
    """Whether it answers with a piece of a statement: who uses it says as much as it does."""
    return function.returns is not None and ast.unparse(function.returns).startswith(
        ("ColumnElement", "Select", "ScalarSelect")
    )


def _tells(owner: ast.stmt, telling: set[str]) -> bool:
    """A tenant is an argument of it, or it compares one, or it is made of what does, or is given what to read."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr == "tenant")
        or (isinstance(node, ast.Name) and (node.id == "tenant" or node.id in telling))
        or (isinstance(node, ast.Attribute) and node.attr in telling)
        or (isinstance(node, ast.arg) and node.arg in {"tenant", "scope"})
        or (isinstance(node, ast.arg) and ast.unparse(node).endswith("FromClause"))
        for node in ast.walk(owner)
    )


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
