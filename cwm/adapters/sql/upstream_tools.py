"""The tools of upstreams in the registry's database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, delete, select, update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.rows import insert_into
from cwm.adapters.sql.tables.upstream_tools import upstream_tools
from cwm.adapters.sql.transactions import reading, writing
from cwm.domain.upstream_tools import SeenTool, ToolVersion

_tool = upstream_tools.c
# An upstream that invents versions does not fill the database: unaccepted ones that it no longer offers are dropped.
_MOST_VERSIONS: Final = 5_000


class SqlUpstreamTools:
    """The port ``UpstreamTools`` on SQLite or Postgres."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @writing
    def note(
        self, connection: Connection, upstream: str, offered: Sequence[ToolVersion], at: datetime
    ) -> tuple[list[SeenTool], list[ToolVersion]]:
        known = _listed(connection, upstream)
        keys = {each.version.key for each in known}
        added = [version for version in offered if version.key not in keys]
        # Older gateways recorded no instructions: the first ones on record are accepted, whatever tools are known.
        known_kinds = {each.version.is_instructions for each in known}
        new = [each for each in added if each.digest and each.is_instructions in known_kinds]
        if added:
            common = {"upstream": upstream, "seen_at": at, "offered_at": at}
            connection.execute(
                insert_into(connection, upstream_tools).on_conflict_do_nothing(),
                [{**common, **asdict(each), "accepted_at": None if each in new else at} for each in added],
            )
        unchanged = [version for version in offered if version.key in keys]
        if unchanged:
            connection.execute(_OFFERED, [_offered(upstream, version, at) for version in unchanged])
        if len(known) + len(added) > _MOST_VERSIONS:
            stale = (_tool.accepted_at.is_(None)) & (_tool.offered_at < at)
            connection.execute(delete(upstream_tools).where(_tool.upstream == upstream, stale))
        return _listed(connection, upstream), new

    @reading
    def listed(self, connection: Connection, upstream: str | None = None) -> list[SeenTool]:
        return _listed(connection, upstream)

    @writing
    def accept(
        self, connection: Connection, upstream: str, tools: Sequence[str], at: datetime
    ) -> list[SeenTool]:
        waiting = [
            each
            for each in _listed(connection, upstream)
            if each.accepted_at is None and (not tools or each.version.tool in tools)
        ]
        if waiting:
            connection.execute(_ACCEPTED, [_offered(upstream, each.version, at) for each in waiting])
        return waiting


_THIS: Final = (
    (_tool.upstream == bindparam("of_upstream"))
    & (_tool.tool == bindparam("of_tool"))
    & (_tool.digest == bindparam("of_digest"))
)
_OFFERED: Final = update(upstream_tools).where(_THIS).values(offered_at=bindparam("at"))
_ACCEPTED: Final = update(upstream_tools).where(_THIS).values(accepted_at=bindparam("at"))


def _listed(connection: Connection, upstream: str | None) -> list[SeenTool]:
    query = select(upstream_tools).order_by(_tool.upstream, _tool.tool, _tool.seen_at, _tool.digest)
    if upstream is not None:
        query = query.where(_tool.upstream == upstream)
    return [_of(row) for row in connection.execute(query)]


def _offered(upstream: str, version: ToolVersion, at: datetime) -> dict[str, Any]:
    return {"of_upstream": upstream, "of_tool": version.tool, "of_digest": version.digest, "at": at}


def _of(row: Row[Any]) -> SeenTool:
    version = ToolVersion(row.tool, row.digest, row.description)
    return SeenTool(row.upstream, version, row.seen_at, row.offered_at, row.accepted_at)
