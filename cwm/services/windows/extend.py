"""Extend: a window is deleted later, or never."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cwm.domain.errors import InvalidParameterError, StorageReadError
from cwm.domain.names import require_window_name
from cwm.domain.principal import Principal
from cwm.domain.visibility import Right
from cwm.ports.clock import Clock
from cwm.ports.registry import Registry
from cwm.services.access.sight import window_of
from cwm.services.audit.journal import Journal, of_another

_LONGEST: Final = timedelta(days=100 * 365)


@dataclass(frozen=True, slots=True)
class Extend:
    registry: Registry
    journal: Journal
    clock: Clock

    async def __call__(self, principal: Principal, window_name: str, until: datetime | None) -> None:
        """Let the window be deleted at ``until``, or never (None).

        CWM-1002, 2002; CWM-1003 for a time that has passed, is more than 100 years ahead, or is not later than the one it has.
        CWM-4002 (retryable) if the window was replaced meanwhile.
        """
        require_window_name(window_name)
        async with self.journal.entry(principal, "window_extend", window_name=window_name) as details:
            window = await window_of(self.registry, principal, window_name, Right.USE)
            details.update(of_another(principal, window.owner))
            details.update(before=_written(window.expires_at), after=_written(until))
            now = self.clock.now()
            if until is not None:
                if not now < until <= now + _LONGEST:
                    raise InvalidParameterError("until is a time to come, within 100 years.", field="until")
                if window.expires_at is None or until < window.expires_at:
                    raise InvalidParameterError(
                        f"Window '{window_name}' stays longer already.", field="until"
                    )
            if not await self.registry.keep_window(window, until, now):
                raise StorageReadError(
                    f"Window '{window_name}' changed; look at it again.", window_name=window_name
                )


def _written(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds")
