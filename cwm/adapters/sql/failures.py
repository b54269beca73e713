"""Maps a database's failures to coded errors whose message contains no SQL and no secret."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from cwm.adapters import certificates
from cwm.domain.errors import CwmError, InvalidParameterError, StorageCorruptionError

_UNREACHABLE: Final = "The database cannot be reached."
_LOCKED: Final = "The database stayed locked by others; try again."
_BUSY: Final = "Every connection to the database is in use; try again."
_FULL: Final = "The disk of the database is full."
_READ_ONLY: Final = "The database is read-only."
_REFUSED: Final = "The database refuses the login or does not exist; check CWM_DATABASE_URL."
_NO_SCHEMA: Final = "The database lacks CWM's tables; run `cwm migrate`."
_DAMAGED: Final = "The database file is damaged or not a database."
_OTHER: Final = "The database could not complete the request."

# Keys, in the order of look-up: SQLite's result code or SQLSTATE, then SQLSTATE's class.
_SENTENCES: Final = {
    "SQLITE_BUSY": _LOCKED,
    "SQLITE_LOCKED": _LOCKED,
    "SQLITE_FULL": _FULL,
    "SQLITE_READONLY": _READ_ONLY,
    "SQLITE_CANTOPEN": _UNREACHABLE,
    "SQLITE_IOERR": _UNREACHABLE,
    "SQLITE_CORRUPT": _DAMAGED,
    "SQLITE_NOTADB": _DAMAGED,
    "40001": _LOCKED,
    "40P01": _LOCKED,
    "55P03": _LOCKED,
    "53100": _FULL,
    "25006": _READ_ONLY,
    "42P01": _NO_SCHEMA,
    "08": _UNREACHABLE,
    "53": _UNREACHABLE,
    "57": _UNREACHABLE,
    "28": _REFUSED,
    "3D": _REFUSED,
    "XX": _DAMAGED,
}


@contextmanager
def coded_errors(failure: type[CwmError]) -> Iterator[None]:
    """Raise ``failure`` for any failure of the database or of the connection to it.

    A damaged database is CWM-4004 and a value that no database can store CWM-1003, for reads and writes alike.
    """
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, OSError, UnicodeEncodeError) as error:
        raise _coded(error, failure) from error


def _coded(error: BaseException, failure: type[CwmError]) -> CwmError:
    cause = error.orig if isinstance(error, StatementError) and error.orig is not None else error
    if isinstance(cause, UnicodeEncodeError) or _state(cause).startswith("22"):
        return InvalidParameterError("A value has characters that cannot be stored.")
    sentence = _sentence(error, cause)
    kind = StorageCorruptionError if sentence is _DAMAGED else failure
    return kind(sentence, cause=type(cause).__name__)


def _sentence(error: BaseException, cause: BaseException) -> str:
    if isinstance(error, PoolTimeoutError):
        return _BUSY
    if (fault := certificates.fault(cause) or _without_tls(cause)) is not None:
        return f"The database {fault}. Check CWM_DATABASE_URL."
    if (fault := _unusable(cause)) is not None:
        return f"The database cannot be asked: {fault}. Check CWM_DATABASE_URL."
    if isinstance(cause, OSError) or (isinstance(error, DBAPIError) and error.connection_invalidated):
        return _UNREACHABLE
    if isinstance(cause, sqlite3.OperationalError) and str(cause).startswith("no such table"):
        return _NO_SCHEMA
    state = _state(cause)
    extended = "_".join(state.split("_")[:2])
    return _SENTENCES.get(state) or _SENTENCES.get(extended) or _SENTENCES.get(state[:2]) or _OTHER


def _without_tls(cause: BaseException) -> str | None:
    """Whether Postgres refused TLS, by the message: asyncpg has no exception type for it."""
    refused = isinstance(cause, ConnectionError) and "rejected SSL upgrade" in str(cause)
    return certificates.SPEAKS_NO_TLS if refused else None


def _unusable(cause: BaseException) -> str | None:
    """The message of asyncpg about an unusable configuration, such as a missing root certificate, without a password."""
    if (own := cause.__cause__) is None:
        return None
    from asyncpg.exceptions import ClientConfigurationError

    return str(own).partition("\n")[0] if isinstance(own, ClientConfigurationError) else None


def _state(cause: BaseException) -> str:
    """SQLite's result code by name (``SQLITE_BUSY_SNAPSHOT``), or Postgres's SQLSTATE of five characters."""
    return getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None) or ""
