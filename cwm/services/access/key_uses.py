"""When API keys were last used, without a write for each request."""

from __future__ import annotations

import contextlib
import contextvars
from datetime import datetime, timedelta
from typing import Final

from cwm.background import BackgroundTasks
from cwm.domain.api_key import ApiKey
from cwm.domain.errors import CwmError
from cwm.ports.api_keys import ApiKeys

_EXACT: Final = timedelta(minutes=1)


class KeyUses:
    """At most one write a minute for a key and a gateway, in the background: no request waits for it or fails with it."""

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys
        self._tried: dict[str, datetime] = {}
        self._tasks = BackgroundTasks()

    def note(self, key: ApiKey, at: datetime) -> None:
        """``key`` is as it is stored now: what another gateway wrote counts, too."""
        latest = [time for time in (key.last_used_at, self._tried.get(key.key_id)) if time is not None]
        if latest and at - max(latest) < _EXACT:
            return
        self._tried[key.key_id] = at
        # In no context of the request: it may end before.
        contextvars.Context().run(self._tasks.start, self._write(key, at))

    async def aclose(self) -> None:
        """What was noted is written, if the registry answers."""
        await self._tasks.settled()

    async def _write(self, key: ApiKey, at: datetime) -> None:
        with contextlib.suppress(CwmError):
            await self._keys.note_use(key.tenant, key.key_id, at)
