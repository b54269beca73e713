"""Where restored tokens came from: the engine's own cache, a tier of LMCache, or unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cwm.domain.engine import EngineIdentity, Tier, engine_key
from cwm.ports.engine import Completion, Counters, Engine
from cwm.services.kv.prefix import Prefix

ENGINE_TIER: Final = "gpu"
"""The engine's own cache, beside the tiers of LMCache."""

UNKNOWN_TIER: Final = "unknown"


@dataclass(slots=True)
class Origins:
    """An engine with our connector reports what it loaded. For any other engine its counters are compared."""

    engine: Engine
    _reporting: set[str] = field(default_factory=set)

    async def before(self, identity: EngineIdentity) -> Counters | None:
        """The engine's counters before a request; None if its answer is expected to report the load."""
        return None if engine_key(identity) in self._reporting else await self._counters(identity)

    async def split(
        self,
        answer: Completion,
        before: Counters | None,
        chunks_by_tier: Mapping[Tier, int] | None,
        prefix: Prefix,
    ) -> dict[str, int]:
        """Cached tokens by tier. ``chunks_by_tier``: chunks by tier that came from below L1; None if not known.

        Tokens whose tier is not known count as ``unknown``.
        """
        external_tokens = answer.loaded_tokens
        if external_tokens is not None:
            self._reporting.add(engine_key(prefix.identity))
            external_tokens = min(external_tokens, answer.cached_tokens)
        elif before is None:
            self._reporting.discard(engine_key(prefix.identity))
        else:
            external_tokens = _external(answer, before, await self._counters(prefix.identity))
        return _split(answer, external_tokens, chunks_by_tier, prefix)

    async def _counters(self, identity: EngineIdentity) -> Counters:
        return await self.engine.on(identity.engine).counters()


def _external(answer: Completion, before: Counters, after: Counters) -> int | None:
    """Tokens that came from LMCache; None if other requests were counted in between."""
    sources = Counter(after.prompt_tokens_by_source)
    sources.subtract(before.prompt_tokens_by_source)
    if sum(sources.values()) != answer.prompt_tokens:
        return None
    return min(round(sources["external_kv_transfer"]), answer.cached_tokens)


def _split(
    answer: Completion, external_tokens: int | None, chunks_by_tier: Mapping[Tier, int] | None, prefix: Prefix
) -> dict[str, int]:
    """Tokens of the engine's own cache and of the tiers below L1; the rest came from L1."""
    if external_tokens is None:
        split = {UNKNOWN_TIER: answer.cached_tokens}
    elif chunks_by_tier is None:
        split = {ENGINE_TIER: answer.cached_tokens - external_tokens, UNKNOWN_TIER: external_tokens}
    else:
        below = {
            str(tier): chunks * (prefix.identity.stored_chunk or 0) for tier, chunks in chunks_by_tier.items()
        }
        if sum(below.values()) > external_tokens:
            # The engine's own cache had some of these tokens.
            below = {next(iter(below)) if len(below) == 1 else UNKNOWN_TIER: external_tokens}
        in_l1 = external_tokens - sum(below.values())
        split = {ENGINE_TIER: answer.cached_tokens - external_tokens, str(Tier.CPU): in_l1, **below}
    return {tier: tokens for tier, tokens in split.items() if tokens}
