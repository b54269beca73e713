"""Measures how far counted tokens differ from the served model's own, on a sample of delivered texts."""

from __future__ import annotations

import asyncio
import logging
import math
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
_LARGE: Final = 0.3
_LOG_AGAIN_SECONDS: Final = 60.0


@dataclass(slots=True)
class TokenDrift:
    """Has the engine tokenize a ``share`` of the delivered texts in the background, chosen by a hash of the text.

    Texts over 200,000 characters are never sampled, and at most two are tokenized at a time. A difference of more than
    30 % is logged and counted.
    """

    engine: Engine
    meter: Meter
    share: float = 0.01
    _asking: BackgroundTasks = field(default_factory=BackgroundTasks)
    _logged_at: float = -math.inf

    def delivered(self, text: str, own_count: int) -> None:
        """Sample a delivered text that was counted as ``own_count`` tokens. Never waits, never fails."""
        if not own_count or len(text) > _MOST_CHARS or not self._chosen(text):
            return
        if len(self._asking) >= _MOST_AT_ONCE:
            self.meter.event("token_drift_skipped")
            return
        self._asking.start(self._ask(text, own_count))

    async def settle(self) -> None:
        """Wait for the requests under way."""
        await self._asking.settled()

    async def aclose(self) -> None:
        """Cancel the requests under way."""
        await self._asking.stop()

    def _chosen(self, text: str) -> bool:
        return zlib.crc32(text.encode("utf-8", "replace")) < self.share * _HASHES

    async def _ask(self, text: str, own_count: int) -> None:
        try:
            async with asyncio.timeout(_ANSWERED_WITHIN_SECONDS):
                model = (await self.engine.models())[0].id
                model_ids = await self.engine.tokenize(model, text, add_special_tokens=False)
        except (CwmError, TimeoutError, IndexError):
            self.meter.event("token_drift_unanswered")
        except Exception:
            logging.getLogger(__name__).exception("the engine could not be asked for tokens")
        else:
            self.meter.drift(own_count, len(model_ids))
            if abs(len(model_ids) / own_count - 1) > _LARGE:
                self._tell_large(own_count, len(model_ids), model)

    def _tell_large(self, own_count: int, model_count: int, model: str) -> None:
        """Count each; log one a minute: a vocabulary that does not fit the model is far off with every text."""
        self.meter.event("token_drift_large")
        now = asyncio.get_running_loop().time()
        if now - self._logged_at >= _LOG_AGAIN_SECONDS:
            self._logged_at = now
            logging.getLogger(__name__).warning(
                "a text counted as %d tokens has %d in the vocabulary of %s: see CWM_TOKEN_VOCABULARY",
                *(own_count, model_count, model),
            )
