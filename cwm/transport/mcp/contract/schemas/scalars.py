"""The values that many answers have."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

Timestamp: TypeAlias = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Tier: TypeAlias = Literal["cpu", "disk", "redis"]
SessionState: TypeAlias = Literal["active", "frozen", "thawed", "expired"]
Durability: TypeAlias = Literal["pending", "durable", "failed"]
Health: TypeAlias = Literal["healthy", "degraded", "unhealthy"]
Retention: TypeAlias = Literal["guaranteed", "best_effort"]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
