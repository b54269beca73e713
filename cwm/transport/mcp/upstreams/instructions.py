"""Adds the instructions of upstreams to CWM's own, in the answer that begins a client's session."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from mcp.server.context import CallNext, HandlerResult

from cwm.domain.errors import CwmError
from cwm.domain.upstream_instructions import with_instructions
from cwm.services.upstreams.instructions import instructions_of
from cwm.services.upstreams.upstreams import Upstreams
from cwm.transport.mcp.requests.agent import Agency, Context
from cwm.transport.mcp.requests.permissions import OF_UPSTREAMS

_BEGINNINGS: Final = frozenset({"initialize", "server/discover"})


@dataclass(frozen=True, slots=True)
class UpstreamInstructions:
    """Middleware of the low-level server, for both protocol eras."""

    upstreams: Upstreams
    agency: Agency

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        result = await call_next(ctx)
        if ctx.method not in _BEGINNINGS or not isinstance(result, dict) or not self.upstreams.names():
            return result
        try:
            principal = await self.agency.principal(ctx)
        except CwmError:
            # Each request will fail with the same error.
            return result
        if not principal.scopes >= OF_UPSTREAMS:
            return result
        texts = await instructions_of(self.upstreams, partial(self.agency.caller, ctx))
        return {**result, "instructions": with_instructions(result["instructions"], texts)}
