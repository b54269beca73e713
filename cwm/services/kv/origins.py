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
    _telling: set[str] = field(default_factory=set)

    async def before(self, identity: EngineIdentity) -> Counters | None:
        """The engine's counters before a request; None if its answer is expected to report the load."""
        return None if engine_key(identity) in self._telling else await self.engine.counters()

    async def split(
        self, answer: Completion, before: Counters | None, loaded: Mapping[Tier, int] | None, prefix: Prefix
    ) -> dict[str, int]:
        """Cached tokens by tier. ``loaded``: chunks by tier that came from below L1; None if not known.

        Tokens whose tier is not known count as ``unknown``.
        """
        external = answer.loaded_tokens
        if external is not None:
            self._telling.add(engine_key(prefix.identity))
            external = min(external, answer.cached_tokens)
        elif before is None:
            self._telling.discard(engine_key(prefix.identity))
        else:
            external = _external(answer, before, await self.engine.counters())
        return _split(answer, external, loaded, prefix)


def _external(answer: Completion, before: Counters, after: Counters) -> int | None:
    """Tokens that came from LMCache; None if other requests were counted in between."""
    sources = Counter(after.prompt_tokens_by_source)
    sources.subtract(before.prompt_tokens_by_source)
    if sum(sources.values()) != answer.prompt_tokens:
        return None
    return min(round(sources["external_kv_transfer"]), answer.cached_tokens)


def _split(
    answer: Completion, external: int | None, loaded: Mapping[Tier, int] | None, prefix: Prefix
) -> dict[str, int]:
    """Tokens of the engine's own cache and of the tiers below L1; the rest came from L1."""
    if external is None:
        split = {UNKNOWN_TIER: answer.cached_tokens}
    elif loaded is None:
        split = {ENGINE_TIER: answer.cached_tokens - external, UNKNOWN_TIER: external}
    else:
        below = {str(tier): chunks * (prefix.identity.chunk_size or 0) for tier, chunks in loaded.items()}
        if sum(below.values()) > external:
            # The engine's own cache had some of these tokens.
            below = {next(iter(below)) if len(below) == 1 else UNKNOWN_TIER: external}
        in_l1 = external - sum(below.values())
        split = {ENGINE_TIER: answer.cached_tokens - external, str(Tier.CPU): in_l1, **below}
    return {tier: tokens for tier, tokens in split.items() if tokens}
