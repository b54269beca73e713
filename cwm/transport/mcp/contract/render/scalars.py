"""Moments, tiers and states as answers have them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import cast

from cwm.domain.engine import Tier
from cwm.domain.session import Session
from cwm.transport.mcp.contract.schemas import scalars as schemas


def moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def tier_name(tier: Tier) -> schemas.Tier:
    return cast("schemas.Tier", str(tier))


def state_name(session: Session) -> schemas.SessionState:
    return cast("schemas.SessionState", str(session.state))
