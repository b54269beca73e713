"""The parts of ``cwm bench fleet``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class FleetPart(StrEnum):
    """In the order in which they run, the longest one last."""

    MOVES = "moves"
    DRAIN = "drain"
    TRAFFIC = "traffic"
    BESIDE = "beside"
    KILLS = "kills"


@dataclass(frozen=True, slots=True)
class FleetRun:
    """How often a session is moved, and an engine killed."""

    moves: int = 20
    kills: int = 20

    def seconds(self, part: FleetPart) -> float:
        """Rough, on two quiet cores."""
        return _SECONDS[part] + {
            FleetPart.MOVES: _A_MOVE * self.moves,
            FleetPart.KILLS: _A_KILL * self.kills,
        }.get(part, 0.0)


_A_MOVE: Final = 8.0
_A_KILL: Final = 55.0
_SECONDS: Final = {
    FleetPart.MOVES: 120.0,
    FleetPart.DRAIN: 90.0,
    FleetPart.TRAFFIC: 110.0,
    FleetPart.BESIDE: 250.0,
    FleetPart.KILLS: 10.0,
}
