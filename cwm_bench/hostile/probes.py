"""Requests of an operation, each tried once: which of them costs the gateway most."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import quote
from uuid import uuid4

import httpx2

from cwm_bench.hostile.gateway import ATTACKER, Owner, Target
from cwm_bench.hostile.growth import Body, bodies
from cwm_bench.hostile.operations import Operation

_PROBE_BYTES: Final = 200_000
# Close under the default of CWM_MAX_BODY_BYTES.
_MOST_BYTES: Final = 8_300_000
_OTHER_BYTES: Final = (_MOST_BYTES, _MOST_BYTES // 8, 1_000)
_TRIED_IN_OTHER_SIZES: Final = 3
_QUERY: Final = "?q=" + quote("-- " * 1_500) + "&limit=100" + "&a=1" * 200
# One principal may send sixty requests a minute without a session.
_PROBES_A_PRINCIPAL: Final = 40
_CHAT: Final = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Probe:
    """``cpu_ms``: processor time that the gateway took for it."""

    name: str
    target: str
    body: bytes
    cpu_ms: float = 0.0


@dataclass(slots=True)
class Probes:
    """Sends each request once, as principals that have used little of their rates. ``owned``: whose things are asked for, if one principal's alone."""

    target: Target
    operation: Operation
    owned: Owner | None
    http: httpx2.AsyncClient
    _sent: int = 0
    _sender: Mapping[str, str] = field(default_factory=dict)

    async def worst(self) -> Probe:
        """The request of all sizes that took most processor time."""
        path, seed = self.operation.path, self.operation.seed
        plain = b"" if seed is None else json.dumps(seed).encode()
        grown = () if seed is None else tuple(bodies(seed))
        tried = [
            await self._tried(Probe("as it is", path, plain)),
            await self._tried(Probe("a long query", path + _QUERY, plain)),
        ]
        tried += [await self._grown(body, _PROBE_BYTES) for body in grown]
        tried += [await self._grown(body, size) for body in _costly(tried, grown) for size in _OTHER_BYTES]
        return max(tried, key=lambda probe: probe.cpu_ms)

    def headers(self) -> dict[str, str]:
        """Of the owner, or of a principal that has sent nothing yet."""
        sender = self.target.headers(ATTACKER) if self.owned is None else self.owned.headers
        session = {"cwm-session-id": f"s-{uuid4().hex[:12]}"} if self.operation.path == _CHAT else {}
        return {
            "origin": self.target.url,
            "accept": "text/html, application/json, text/event-stream",
            **self.operation.headers,
            **session,
            **sender,
        }

    async def _grown(self, body: Body, size: int) -> Probe:
        return await self._tried(Probe(body.name, self.operation.path, body.grown(size)))

    async def _tried(self, probe: Probe) -> Probe:
        if self._sent % _PROBES_A_PRINCIPAL == 0:
            self._sender = self.headers()
        self._sent += 1
        method, before = self.operation.method, self.target.cpu_ms()
        try:
            async with self.http.stream(
                method, self.target.url + probe.target, content=probe.body, headers=self._sender
            ) as answer:
                if method != "GET" or "event-stream" not in answer.headers.get("content-type", ""):
                    async for _ in answer.aiter_bytes():
                        pass
        except httpx2.TransportError:
            # A gateway may close the connection on what it refuses.
            pass
        return replace(probe, cpu_ms=self.target.cpu_ms() - before)


def _costly(tried: Sequence[Probe], grown: Sequence[Body]) -> list[Body]:
    cpu_ms = {probe.name: probe.cpu_ms for probe in tried}
    return sorted(grown, key=lambda body: -cpu_ms[body.name])[:_TRIED_IN_OTHER_SIZES]
