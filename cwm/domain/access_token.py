"""The verified content of an OAuth access token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token that passed verification: issued by a trusted issuer, for this gateway, and currently valid.

    ``subject`` is unique within the issuer; it is None when a client acts for itself and the token names no
    subject. ``scopes`` keep the issuer's spelling; ``claims`` holds every claim of the token.
    """

    issuer: str
    subject: str | None
    client: str
    scopes: frozenset[str]
    claims: Mapping[str, Any]
