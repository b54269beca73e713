"""Runs the migrations on the connection that ``cwm.adapters.sql.schema`` opened, inside its transaction."""

from __future__ import annotations

from typing import Any

from alembic import context
from sqlalchemy import Connection

from cwm.adapters.sql.tables import metadata

connection: Connection | None = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("Migrations are applied by `cwm migrate`.")


def note(_context: Any = None, step: Any = None, *_: Any, **__: Any) -> None:
    context.config.attributes["applied"].append(step.up_revision_id)


context.configure(
    connection=connection,
    target_metadata=metadata,
    transactional_ddl=True,
    render_as_batch=connection.dialect.name == "sqlite",
    on_version_apply=note,
)
with context.begin_transaction():
    context.run_migrations()
