"""Databases as older versions of CWM left them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from alembic import command
from sqlalchemy import Connection, column, insert, table

from cwm.adapters.sql import schema
from cwm.adapters.sql.registry import snapshots
from cwm.adapters.sql.registry.packed import compress
from cwm.adapters.sql.registry.sessions import head_of
from cwm.adapters.sql.rows import session_values, window_values
from cwm.adapters.sql.tables import metadata
from cwm.adapters.sql.window_list import terms
from cwm.domain.prefix import TokenIds
from cwm.domain.session import Session
from cwm.domain.window import Window

IDS_OF_0009: Final = tuple(range(2_000))
_SINCE_0010: Final = frozenset({"turn_id", "automatic"})


def upgrade_to(connection: Connection, revision: str) -> None:
    command.upgrade(schema.configuration(connection, []), revision)


def add_sessions_of_0009(connection: Connection, sessions: Sequence[Session]) -> None:
    """Each has as many of the ids as its ``token_count`` says."""
    tokens = table(
        "session_tokens",
        *(column(name) for name in ("tenant", "session_id", "digest", "token_count", "packed")),
    )
    heads = [head_of(IDS_OF_0009[: session.token_count]) for session in sessions]
    rows = [session_values(session) | {"head": head} for session, head in zip(sessions, heads, strict=True)]
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
        terms.enlist(connection, window)
        terms.count(connection, window, 1)


def window_row_of_0009(window: Window) -> dict[str, Any]:
    values = window_values(window) | {"uid": f"uid-of-{window.name}"}
    return {name: value for name, value in values.items() if name not in _SINCE_0010}
