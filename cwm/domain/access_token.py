"""What an authorization server says in an access token that it vouches for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token that was checked: it is the issuer's, for us, and good now.

    ``subject`` is unique within the issuer, None in a token of a client for itself that names none.
    ``scopes`` are as the issuer spells them; ``claims`` is everything in the token.
    """

    issuer: str
    subject: str | None
    client: str
    scopes: frozenset[str]
    claims: Mapping[str, Any]
