"""API keys for machines that cannot sign in: shown once, stored as a digest."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cwm.domain.access import AccessScope

MARK: Final = "cwm_"
"""The prefix of every key, so that scanners of repositories and logs recognise a leaked one."""

NAME_PATTERN: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}", re.ASCII)
_KEY: Final = re.compile(r"cwm_(?P<key_id>[0-9a-f]{16})_(?P<secret>[A-Za-z0-9_-]{43})", re.ASCII)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key as stored.

    ``name`` names the machine: all keys of one name are the same principal, so that a new key can replace an old
    one. ``workspaces`` are the names of those that it is a member of. ``last_used_at`` is exact to
    a minute; None if it was not used since uses are recorded.
    """

    tenant: str
    key_id: str
    name: str
    scopes: frozenset[AccessScope]
    digest: str
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    workspaces: frozenset[str] = frozenset()
    last_used_at: datetime | None = None

    def opens_for(self, secret: str) -> bool:
        """Whether ``secret`` matches, compared in constant time."""
        return hmac.compare_digest(self.digest, digest_of(secret))

    def is_good(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def written(key_id: str, secret: str) -> str:
    """The key as its machine sends it: 16 hexadecimal digits to look it up, 43 characters to prove it."""
    return f"{MARK}{key_id}_{secret}"


def taken_apart(key: str) -> tuple[str, str] | None:
    """Split a key into ``(key_id, secret)``; None when it is not a well-formed key."""
    match = _KEY.fullmatch(key)
    return None if match is None else (match["key_id"], match["secret"])


def digest_of(secret: str) -> str:
    """SHA-256 is enough: a secret of 256 random bits cannot be guessed, so no slow hash is needed."""
    return hashlib.sha256(secret.encode()).hexdigest()
