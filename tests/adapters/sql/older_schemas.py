"""Databases as older versions of CWM left them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from alembic import command
from sqlalchemy import Connection, column, insert, table, text

from cwm.adapters.sql import schema
from cwm.adapters.sql.registry import snapshots
from cwm.adapters.sql.registry.sessions import head_of
from cwm.adapters.sql.rows import session_values, window_values
from cwm.adapters.sql.tables import metadata
from cwm.adapters.sql.tables.window_lists import window_search, window_terms
from cwm.adapters.sql.turns.packed import compress
from cwm.adapters.sql.window_list import terms
from cwm.domain.prefix import TokenIds
from cwm.domain.session import Session
from cwm.domain.window import Window

IDS_OF_0009: Final = tuple(range(2_000))
_SINCE_0010: Final = frozenset({"turn_id", "automatic"})
_SINCE_0011: Final = frozenset({"circle"})
_SINCE_0015: Final = frozenset({"engine", "moving_until"})
_SINCE_0021: Final = frozenset({"proven_tokens", "proven_digest"})
_COUNTED: Final = """
INSERT INTO window_counts (tenant, term, windows)
SELECT tenant, '', count(*) FROM window_search GROUP BY tenant
UNION ALL SELECT tenant, term, count(*) FROM window_terms GROUP BY tenant, term
"""


def upgrade_to(connection: Connection, revision: str) -> None:
    command.upgrade(schema.configuration(connection, []), revision)


def add_sessions_of_0009(connection: Connection, sessions: Sequence[Session]) -> None:
    """Each has as many of the ids as its ``token_count`` says."""
    tokens = table(
        "session_tokens",
        *(column(name) for name in ("tenant", "session_id", "digest", "token_count", "packed")),
    )
    heads = [head_of(IDS_OF_0009[: session.token_count]) for session in sessions]
    rows = [
        before_0011(session_values(session)) | {"head": head}
        for session, head in zip(sessions, heads, strict=True)
    ]
    connection.execute(insert(metadata.tables["sessions"]), rows)
    token_rows = []
    for session in sessions:
        packed, content = compress(IDS_OF_0009[: session.token_count])
        token_rows.append(
            {
                "tenant": session.tenant,
                "session_id": session.id,
                "digest": content,
                "token_count": session.token_count,
                "packed": packed,
            }
        )
    connection.execute(insert(tokens), token_rows)


def add_windows_of_0009(connection: Connection, windows: Sequence[tuple[Window, TokenIds]]) -> None:
    for window, token_ids in windows:
        snapshots.keep(connection, window.tenant, token_ids)
        connection.execute(insert(metadata.tables["windows"]).values(window_row_of_0009(window)))
        row = insert(window_search).values(before_0011(terms.search_values(window)))
        search_id = connection.execute(row.returning(window_search.c.id)).scalar_one()
        of_circle = terms.circle_term(window.circle)
        rows = [values for values in terms.term_values(window) if values["term"] != of_circle]
        connection.execute(insert(window_terms), rows)
        terms.add_grams(connection, [terms.gram_values(connection, search_id, window)])
    connection.execute(text(_COUNTED))


def window_row_of_0009(window: Window) -> dict[str, Any]:
    values = window_values(window) | {"uid": f"uid-of-{window.name}"}
    return {name: value for name, value in before_0011(values).items() if name not in _SINCE_0010}


def before_0011(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in before_0015(values).items() if name not in _SINCE_0011}


def before_0015(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in before_0021(values).items() if name not in _SINCE_0015}


def before_0021(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in _SINCE_0021}
