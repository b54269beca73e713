"""Shared context: keys and values in scopes. Every state of a scope has a version number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final
from urllib.parse import quote, unquote

from cwm.domain.errors import ContextConflictError, InvalidParameterError
from cwm.domain.names import is_storable

MAX_KEY_CHARS: Final = 256
LABEL_PATTERN: Final = r"^[a-zA-Z0-9_.-]{1,64}$"
SCOPE_PATTERN: Final = r"^(session|tenant|workspace:[a-zA-Z0-9_.-]{1,64})$"
SESSION: Final = "session"
ANSWERS: Final = "answers"
"""Prefix of scopes that hold cached upstream answers. Clients can neither name them nor watch them."""
MIN_PRIORITY: Final = 0
MAX_PRIORITY: Final = 10
DEFAULT_PRIORITY: Final = 5
URI_PREFIX: Final = "cwm://context/"
ANY_SUFFIX: Final = "*"

_SCOPE = re.compile(SCOPE_PATTERN[1:-1])
_LABEL = re.compile(LABEL_PATTERN[1:-1])
# Characters that RFC 3986 allows unescaped in a path, except the asterisk, which marks a prefix.
_UNQUOTED: Final = "/:@!$&'(),;=~._-"


@dataclass(frozen=True, slots=True)
class ContextScope:
    """Who shares keys. ``name`` is what callers write; ``key`` is unique in the tenant, also among private scopes.

    The key is ``session:<key of the agent session>``, ``workspace:<name>`` or ``tenant``.
    """

    tenant: str
    name: str
    key: str

    @property
    def is_private(self) -> bool:
        return self.name == SESSION

    @property
    def is_named(self) -> bool:
        """Whether callers can name the scope: a workspace's or the tenant's, not a private one."""
        return not self.is_private and _SCOPE.fullmatch(self.name) is not None


def scope_of(tenant: str, agent_session: str, name: str) -> ContextScope:
    """The scope that a caller of ``tenant`` means by ``name``. Raises CWM-1003.

    ``agent_session`` is the key of the caller's agent session.
    """
    if not _SCOPE.fullmatch(name):
        raise InvalidParameterError(
            "scope: must be session, tenant or workspace:<name> with 1 to 64 letters, digits, '_', '-' or '.'.",
            field="scope",
        ).refusing(name)
    return ContextScope(tenant, name, f"{SESSION}:{agent_session}" if name == SESSION else name)


def scope_by_key(tenant: str, key: str) -> ContextScope:
    """The scope with this ``key``."""
    return ContextScope(tenant, SESSION if key.startswith(f"{SESSION}:") else key, key)


def require_key(key: str, *, prefix: bool = False) -> str:
    """Return ``key`` or raise CWM-1003. A ``prefix`` may be empty."""
    if len(key) > MAX_KEY_CHARS or not (key or prefix):
        raise InvalidParameterError(f"key: must have 1 to {MAX_KEY_CHARS} characters.", field="key")
    if not is_storable(key) or not key.isprintable():
        raise InvalidParameterError(
            "key: must be printable text, without line breaks and control characters.", field="key"
        )
    return key


def require_label(label: str) -> str:
    """Return ``label`` or raise CWM-1003."""
    if not _LABEL.fullmatch(label):
        fault = "label: must be 1 to 64 letters, digits, '_', '-' or '.'."
        raise InvalidParameterError(fault, field="label").refusing(label)
    return label


def uri_of(scope_name: str, key: str) -> str:
    """The resource URI of a key; with an asterisk appended, of all keys with that prefix."""
    return f"{URI_PREFIX}{scope_name}/{quote(key, safe=_UNQUOTED)}"


def named_by(uri: str) -> tuple[str, str] | None:
    """Scope name and key of a resource URI; the key keeps its asterisk. None for other URIs."""
    if not uri.startswith(URI_PREFIX):
        return None
    scope_name, slash, rest = uri.removeprefix(URI_PREFIX).partition("/")
    if not slash or not _SCOPE.fullmatch(scope_name):
        return None
    return scope_name, unquote(rest)


def watches(subscribed_uri: str, changed_uri: str) -> bool:
    """Whether a subscriber to ``subscribed_uri`` should be notified of a change of ``changed_uri``.

    Either may be a prefix: then any key under it may have changed.
    """
    if subscribed_uri == changed_uri:
        return True
    if not subscribed_uri.startswith(URI_PREFIX):
        return False
    under = is_prefix(subscribed_uri) and changed_uri.startswith(subscribed_uri.removesuffix(ANY_SUFFIX))
    return under or (
        is_prefix(changed_uri) and subscribed_uri.startswith(changed_uri.removesuffix(ANY_SUFFIX))
    )


def is_prefix(uri: str) -> bool:
    """Whether the URI stands for all keys with a common prefix."""
    return uri.startswith(URI_PREFIX) and uri.endswith(ANY_SUFFIX)


@dataclass(frozen=True, slots=True)
class Entry:
    """The state of a key from ``version`` of its scope on. Without a ``digest``, that version deleted the key.

    ``size`` is that of the value as canonical JSON; ``author`` is the subject that wrote it.
    """

    key: str
    version: int
    digest: str | None
    size: int
    priority: int
    immutable: bool
    author: str
    written_at: datetime
    expires_at: datetime | None = None

    def is_there(self, at: datetime) -> bool:
        return self.digest is not None and not self.has_expired(at)

    def has_expired(self, at: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= at


@dataclass(frozen=True, slots=True)
class Write:
    """One key's part of a write. Without a ``digest`` it deletes the key.

    ``if_version`` is the version that the key must have: 0 for an absent key, None for any version. ``ttl_ms``
    counts from the write; ``expires_at`` gives the moment instead.
    """

    key: str
    digest: str | None = None
    size: int = 0
    priority: int = DEFAULT_PRIORITY
    immutable: bool = False
    ttl_ms: int | None = None
    expires_at: datetime | None = None
    if_version: int | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """The current position of a scope.

    ``version`` counts its writes, states before ``floor`` are no longer stored, ``now`` is the store's clock.
    """

    version: int
    floor: int
    now: datetime


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A label for the state of a scope at ``version``."""

    label: str
    version: int
    author: str
    taken_at: datetime


class Refusal(StrEnum):
    """Why a write was refused."""

    VERSION = "version"
    IMMUTABLE = "immutable"


def conflict(refusal: Refusal, key: str, version: int) -> ContextConflictError:
    """CWM-3007. ``version`` is the key's current version, 0 for an absent key."""
    message = (
        "The key is immutable."
        if refusal is Refusal.IMMUTABLE
        else "The key is no longer at that version: read it again, then write with its current version."
    )
    return ContextConflictError(message, key=key, current_version=version, reason=refusal.value)


def refusal_of(write: Write, current: Entry | None, now: datetime) -> Refusal | None:
    """The reason to refuse a write to a key whose entry is ``current``; None to accept it."""
    there = current is not None and current.is_there(now)
    if there and current is not None and current.immutable:
        return Refusal.IMMUTABLE
    version = current.version if there and current is not None else 0
    return Refusal.VERSION if write.if_version not in {None, version} else None


def difference(target: Mapping[str, Entry], current: Mapping[str, Entry]) -> list[Write]:
    """The writes that turn ``current`` into ``target``."""
    writes = [
        Write(
            key,
            entry.digest,
            entry.size,
            entry.priority,
            entry.immutable,
            expires_at=entry.expires_at,
        )
        for key, entry in target.items()
        if key not in current
        or (current[key].version != entry.version and _facts(current[key]) != _facts(entry))
    ]
    writes.extend(Write(key) for key in current if key not in target)
    return writes


def _facts(entry: Entry) -> tuple[object, ...]:
    return entry.digest, entry.priority, entry.immutable, entry.expires_at
