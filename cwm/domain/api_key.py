"""Keys of machines that cannot sign in: shown once, kept as a digest."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cwm.domain.access import Scope

MARK: Final = "cwm_"
"""Every key begins with it, so that scanners of repositories and logs find one that got lost."""

NAME_PATTERN: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}", re.ASCII)
_KEY: Final = re.compile(r"cwm_(?P<key_id>[0-9a-f]{16})_(?P<secret>[A-Za-z0-9_-]{43})", re.ASCII)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """``name`` is the machine's: keys of one name are one principal, so that a new one can take over from an old one."""

    tenant: str
    key_id: str
    name: str
    scopes: frozenset[Scope]
    digest: str
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def opens_for(self, secret: str) -> bool:
        """In a time that does not depend on where the two differ."""
        return hmac.compare_digest(self.digest, digest_of(secret))

    def is_good(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def written(key_id: str, secret: str) -> str:
    """The key as its machine sends it: 16 hexadecimal digits to look it up, 43 characters to prove it."""
    return f"{MARK}{key_id}_{secret}"


def taken_apart(key: str) -> tuple[str, str] | None:
    """``(key_id, secret)``; None for what is no key."""
    found = _KEY.fullmatch(key)
    return None if found is None else (found["key_id"], found["secret"])


def digest_of(secret: str) -> str:
    """256 random bits need no slow hash: there is nothing to guess from."""
    return hashlib.sha256(secret.encode()).hexdigest()
