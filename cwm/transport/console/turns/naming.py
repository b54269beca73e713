"""How an address names a turn."""

from __future__ import annotations

import re

from cwm.domain.errors import TurnNotFoundError
from cwm.domain.names import TURN_PATTERN
from cwm.domain.turn import TurnSource


def source_of(turn_id: str) -> TurnSource:
    """The turn with this id, or ``tag:NAME``. CWM-2007 for what can be neither."""
    if not re.fullmatch(TURN_PATTERN[1:-1], turn_id):
        raise TurnNotFoundError(f"There is no recorded turn '{turn_id[:64]}'.")
    return TurnSource(turn_id=turn_id)
