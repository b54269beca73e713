"""Which LMCache server, as the coordinator names it, stands beside which engine."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

from cwm.adapters.http.addresses import addresses_of

_LOOK_AGAIN_SECONDS: Final = 5.0


class Neighbours:
    """Engines by the instance id of the LMCache server beside them. ``servers``: the servers' URLs by the engine's name.

    A server does not tell its instance id; the coordinator lists ids with the addresses that servers gave.
    """

    def __init__(self, servers: Mapping[str, str]) -> None:
        self._servers = servers
        self._engines: dict[str, frozenset[str]] = {}
        self._looked = float("-inf")

    def look_for(self, instances: Iterable[str]) -> bool:
        """Whether to :meth:`learn`: one of these is not known, there are several engines, and the last look is not of just now."""
        if len(self._servers) < 2 or self._engines.keys() >= set(instances):
            return False
        now = asyncio.get_running_loop().time()
        if now - self._looked < _LOOK_AGAIN_SECONDS:
            return False
        self._looked = now
        return True

    async def learn(self, instances: Sequence[Mapping[str, Any]]) -> None:
        """Take the coordinator's list of ``instances``."""
        instance_ids = await asyncio.gather(
            *(_instances_at(url, instances) for url in self._servers.values())
        )
        engines: defaultdict[str, set[str]] = defaultdict(set)
        for name, ids in zip(self._servers, instance_ids, strict=True):
            for instance in ids:
                engines[instance].add(name)
        self._engines = {instance: frozenset(names) for instance, names in engines.items()}

    def of(self, instances: Iterable[str]) -> frozenset[str]:
        """The engines beside these."""
        return frozenset().union(*(self._engines.get(instance, ()) for instance in instances))


async def _instances_at(url: str, instances: Sequence[Mapping[str, Any]]) -> list[str]:
    """By address and port. By the port alone where the server gave another address of itself, and no other server has that port."""
    parts = urlsplit(url)
    same_port = [each for each in instances if each["http_port"] == (parts.port or 80)]
    addresses = {parts.hostname or ""}
    if not any(each["ip"] in addresses for each in same_port):
        with suppress(OSError):
            addresses = set(await addresses_of(parts.hostname or ""))
    here = [each["instance_id"] for each in same_port if each["ip"] in addresses]
    return here or ([same_port[0]["instance_id"]] if len(same_port) == 1 else [])
