"""The engines in force: those that the settings list, and those at the addresses of a name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import structlog

from cwm.adapters.http.addresses import addresses_of
from cwm.adapters.lmcache.client import LmcacheTier
from cwm.adapters.vllm.client import VllmEngine
from cwm.adapters.vllm.fleet import VllmFleet
from cwm.adapters.vllm.media import MediaRule
from cwm.ports.tracing import UNTRACED, Tracer
from cwm.services.engines.directory import EngineDirectory
from cwm.settings import Settings
from cwm.settings.engine import Engine
from cwm.settings.engines import EngineEntry

_log = structlog.get_logger("cwm.engines")

LookUp: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]


@dataclass(slots=True)
class EngineList:
    """``look_up`` gives the addresses of a name; it raises OSError."""

    settings: Settings
    tracer: Tracer = UNTRACED
    look_up: LookUp = addresses_of
    fleet: VllmFleet = field(init=False)
    kv_tier: LmcacheTier = field(init=False)
    directory: EngineDirectory | None = None
    media: MediaRule = field(init=False)
    _addresses: dict[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.media = MediaRule(private=self.settings.turns.private_media)
        engines = self._in_force()
        self.fleet = VllmFleet({name: self._engine(each) for name, each in engines.items()})
        self.kv_tier = LmcacheTier(self.settings.engine, self.tracer, _servers(engines))

    def entries(self) -> dict[str, EngineEntry]:
        """By name; empty if there is the one engine of the settings."""
        entries: dict[str, EngineEntry] = {}
        for name, entry in self.settings.engines.items():
            if entry.dns is None:
                entries[name] = entry
            else:
                addresses = self._addresses.get(entry.dns[0], ())
                entries.update({f"{name}-{address}": entry.at(address) for address in addresses})
        return entries

    async def configure(self, settings: Settings) -> None:
        """Replace the settings. An engine that did not change keeps its connections; what runs on one that is gone goes on."""
        self.settings = settings
        self._addresses = await self._looked_up()
        self._apply()

    async def look(self) -> None:
        """Look the names up. A name that nobody knows at the moment keeps its addresses. ValueError about a certificate that cannot be used."""
        before, self._addresses = self._addresses, await self._looked_up()
        if self._addresses == before:
            return
        try:
            self._apply()
        except ValueError:
            self._addresses = before
            raise

    async def _looked_up(self) -> dict[str, Sequence[str]]:
        names = {entry.dns[0] for entry in self.settings.engines.values() if entry.dns is not None}
        addresses = await asyncio.gather(*(self._found(name) for name in names))
        return dict(zip(names, addresses, strict=True))

    async def watch(self, interval_seconds: float) -> None:
        """Look the names up again and again, and close engines that are gone. Runs until cancelled."""
        while True:
            await asyncio.sleep(interval_seconds)
            try:
                await self.look()
            except ValueError as error:
                # A certificate is being replaced.
                _log.warning("engines_not_looked_up", why=str(error))
            await self.fleet.close_retired()

    def _in_force(self) -> Mapping[str, Engine]:
        return self.entries() if self.settings.engines else {"": self.settings.engine}

    def _apply(self) -> None:
        before, engines, entries = self.fleet.by_name, self._in_force(), self.entries()
        after = {
            name: self._kept(before.get(name), each) or self._engine(each) for name, each in engines.items()
        }
        rules = {name: entry.rules for name, entry in entries.items()}
        if after != before:
            self.fleet.configure(after)
            self.kv_tier.configure(_servers(engines))
        if self.directory is not None and (after != before or rules != self.directory.rules):
            self.directory.rules = rules
            self.directory.forget()

    def _kept(self, engine: VllmEngine | None, settings: Engine) -> VllmEngine | None:
        if engine is None or engine.settings == settings:
            return engine
        return engine if isinstance(settings, EngineEntry) and settings.reached_as(engine.settings) else None

    def _engine(self, settings: Engine) -> VllmEngine:
        return VllmEngine(settings, self.tracer, self.media)

    async def _found(self, name: str) -> Sequence[str]:
        try:
            return await self.look_up(name)
        except (OSError, UnicodeError):
            return self._addresses.get(name, ())


def _servers(engines: Mapping[str, Engine]) -> dict[str, str]:
    return {name: each.lmcache_url for name, each in engines.items() if name}
