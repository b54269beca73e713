"""What the session layer learned of a request, in its ASGI scope."""

from __future__ import annotations

from typing import Final

PRINCIPAL: Final = "cwm.principal"
"""Who asks: a ``Principal``."""

AGENT_SESSION: Final = "cwm.agent_session"
"""The key of the agent session; absent where it is not known, as for a client of 2026-07-28."""

STRANGER: Final = "cwm.stranger"
"""Present on a request that is answered although nobody knows whose it is: with less than others learn."""
