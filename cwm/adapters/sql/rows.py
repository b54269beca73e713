"""Converts rows to domain objects and back, and splits long lists of values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

from sqlalchemy import Column, Connection, Row, Table
from sqlalchemy.dialects import postgresql, sqlite

from cwm.adapters.sql.tables.audit import audit_log
from cwm.adapters.sql.tables.gateways import intents
from cwm.adapters.sql.tables.sessions import sessions
from cwm.adapters.sql.tables.turns import turns
from cwm.adapters.sql.tables.windows import windows
from cwm.domain.audit import AuditEvent, Severity
from cwm.domain.audit_chain import AuditRecord
from cwm.domain.engine import EngineIdentity, Tier
from cwm.domain.intent import Debt, Intent, Operation
from cwm.domain.origin import Face, Origin
from cwm.domain.session import Session, SessionState
from cwm.domain.turn import Profile, Turn, TurnState
from cwm.domain.window import Durability, Retention, Window

_VALUES_AT_ONCE: Final = 500


def _columns_of(table: Table, noun: type[Any]) -> tuple[Column[Any], ...]:
    return tuple(table.c[field.name] for field in fields(noun))


SESSION: Final = _columns_of(sessions, Session)
WINDOW: Final = _columns_of(windows, Window)
TURN: Final = tuple(
    column for column in turns.c if column.key not in {"head", "packed", "messages", "title", "sealed_keys"}
)
AUDIT_RECORD: Final = tuple(audit_log.c)
INTENT: Final = tuple(intents.c)
_CONSTRUCTORS: Final[list[tuple[int, Callable[[Any], Any]]]] = [
    (next(at for at, column in enumerate(WINDOW) if column.key == name), constructor)
    for name, constructor in (
        ("storage_tier", Tier),
        ("durability", Durability),
        ("retention", Retention),
        ("identity", EngineIdentity.from_dict),
        ("tags", tuple),
    )
]
"""Constructors of a window's fields that are not plain values, by position in a row."""


def insert_into(connection: Connection, table: Table) -> Any:
    """An INSERT in the database's dialect, which can say what happens if there is such a row."""
    return (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table)


def at_a_time(values: Sequence[str]) -> Iterator[Sequence[str]]:
    """Parts of ``values``, because databases limit the number of values in a statement."""
    for start in range(0, len(values), _VALUES_AT_ONCE):
        yield values[start : start + _VALUES_AT_ONCE]


def session_of(row: Row[Any], columns: Sequence[Column[Any]] = SESSION) -> Session:
    values = _by_name(columns, row)
    return Session(**{**values, "state": SessionState(values["state"])})


def session_values(session: Session) -> dict[str, Any]:
    return {**_values(session, SESSION), "state": session.state.value}


def turn_of(row: Row[Any]) -> Turn:
    values = _by_name(TURN, row)
    profile = Profile(values.pop("system"), values.pop("tools"))
    return Turn(**{**values, "state": TurnState(values["state"])}, profile=profile)


def turn_values(turn: Turn) -> dict[str, Any]:
    plain = (column for column in TURN if column.key not in {"system", "tools"})
    return {**_values(turn, tuple(plain)), **asdict(turn.profile), "state": turn.state.value}


def window_of(row: Row[Any]) -> Window:
    """The window of a row that begins with the columns of ``WINDOW``, which are in the order of the fields."""
    values = list(row[: len(WINDOW)])
    for position, construct in _CONSTRUCTORS:
        values[position] = construct(values[position])
    return Window(*values)


def window_values(window: Window) -> dict[str, Any]:
    return {
        **_values(window, WINDOW),
        "storage_tier": window.storage_tier.value,
        "durability": window.durability.value,
        "retention": window.retention.value,
        "identity": window.identity.as_dict(),
        "tags": list(window.tags),
        "tiers": dict(window.tiers),
    }


def record_of(row: Row[Any]) -> AuditRecord:
    values = _by_name(AUDIT_RECORD, row)
    chained = {name: values.pop(name) for name in ("seq", "previous", "key_id", "digest")}
    origin = Origin(Face(values.pop("face")), values.pop("address"), values.pop("user_agent"))
    event = AuditEvent(**{**values, "severity": Severity(values["severity"]), "origin": origin})
    return AuditRecord(event=event, **chained)


def record_values(record: AuditRecord) -> dict[str, Any]:
    event, origin = record.event, record.event.origin
    return {
        "tenant": event.tenant,
        "seq": record.seq,
        "timestamp": event.timestamp,
        "subject": event.subject,
        "event": event.event,
        "outcome": event.outcome,
        "session_id": event.session_id,
        "window_name": event.window_name,
        "severity": event.severity.value,
        "details": event.details,
        "face": origin.face.value,
        "address": origin.address,
        "user_agent": origin.user_agent,
        "previous": record.previous,
        "key_id": record.key_id,
        "digest": record.digest,
    }


def intent_of(row: Row[Any]) -> Intent:
    values = _by_name(INTENT, row)
    details = values.pop("details")
    values["operation"] = Operation(values["operation"])
    return Intent(**values, debt=Debt(**{**details, "hashes": tuple(details["hashes"])}) if details else None)


def intent_values(intent: Intent) -> dict[str, Any]:
    values = {column.key: getattr(intent, column.key) for column in INTENT if column.key != "details"}
    details = asdict(intent.debt) if intent.debt else {}
    return {**values, "operation": intent.operation.value, "details": details}


def _by_name(columns: Sequence[Column[Any]], row: Row[Any]) -> dict[str, Any]:
    return {column.key: value for column, value in zip(columns, row, strict=False)}


def _values(noun: Any, columns: tuple[Column[Any], ...]) -> dict[str, Any]:
    return {column.key: getattr(noun, column.key) for column in columns}
