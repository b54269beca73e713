"""Rename: another name for the same window. Its KV does not move."""

from __future__ import annotations

from dataclasses import dataclass

from cwm.domain.names import require_window_name
from cwm.domain.principal import Principal
from cwm.domain.visibility import Right
from cwm.domain.window import Window
from cwm.ports.clock import Clock
from cwm.ports.registry import Registry
from cwm.services.access.sight import window_of
from cwm.services.audit.journal import Journal, of_another


@dataclass(frozen=True, slots=True)
class Rename:
    registry: Registry
    journal: Journal
    clock: Clock

    async def __call__(self, principal: Principal, window_name: str, new_name: str) -> Window:
        """The window under its new name. CWM-1002, 2002, 3003; CWM-4002 (retryable) while it is being stored or thawed."""
        require_window_name(window_name)
        require_window_name(new_name)
        async with self.journal.entry(principal, "window_rename", window_name=window_name) as details:
            window = await window_of(self.registry, principal, window_name, Right.USE)
            details.update(of_another(principal, window.owner), new_name=new_name)
            return await self.registry.rename_window(window, new_name, self.clock.now())
