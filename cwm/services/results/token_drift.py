"""How far counted tokens are from the served model's own, on a sample of what is delivered."""

from __future__ import annotations

import asyncio
import logging
import zlib
from dataclasses import dataclass, field
from typing import Final

from cwm.background import BackgroundTasks
from cwm.domain.errors import CwmError
from cwm.ports.engine import Engine
from cwm.ports.meter import Meter

_MOST_CHARS: Final = 200_000
_MOST_AT_ONCE: Final = 2
_ANSWERED_WITHIN_SECONDS: Final = 30.0
_HASHES: Final = 2**32


@dataclass(slots=True)
class TokenDrift:
    """``share`` of delivered texts, chosen by what they say, are tokenized by the engine, too, while nobody waits.

    A text over 200,000 characters is never asked about, and more than two at a time are not.
    """

    engine: Engine
    meter: Meter
    share: float = 0.01
    _asking: BackgroundTasks = field(default_factory=BackgroundTasks)

    def delivered(self, text: str, counted: int) -> None:
        """``text`` was delivered as ``counted`` tokens. Never waits, never fails."""
        if not counted or len(text) > _MOST_CHARS or not self._chosen(text):
            return
        if len(self._asking) >= _MOST_AT_ONCE:
            self.meter.event("token_drift_skipped")
            return
        self._asking.start(self._ask(text, counted))

    async def settle(self) -> None:
        """Wait for what was asked."""
        await self._asking.settled()

    async def aclose(self) -> None:
        await self._asking.stop()

    def _chosen(self, text: str) -> bool:
        return zlib.crc32(text.encode("utf-8", "replace")) < self.share * _HASHES

    async def _ask(self, text: str, counted: int) -> None:
        try:
            async with asyncio.timeout(_ANSWERED_WITHIN_SECONDS):
                model = (await self.engine.models())[0].id
                served = await self.engine.tokenize(model, text, add_special_tokens=False)
        except (CwmError, TimeoutError, IndexError):
            self.meter.event("token_drift_unanswered")
        except Exception:
            logging.getLogger(__name__).exception("the engine could not be asked for tokens")
        else:
            self.meter.drift(counted, len(served))
