"""Who acts, and whose data it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated actor. Always complete: there is no principal without a tenant."""

    tenant: str
    subject: str
