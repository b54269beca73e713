"""What is known of each engine's noise, and the survey that measures it where nothing is known yet."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Final

from cwm.domain.engine import EngineIdentity, engine_key
from cwm.domain.errors import CwmError
from cwm.domain.look import Distance, Look, distance, places_of, probes_of
from cwm.domain.noise import Noise
from cwm.ports.clock import Clock
from cwm.ports.engine import Engine
from cwm.ports.noise import NoiseRecords
from cwm.services.engines.directory import EngineDirectory
from cwm.services.kv.prefix import Prefix, fitting

_TENANT: Final = "cwm:noise"  # no tenant can have this name
_TEXT: Final = "Two looks at the same keys and values differ by the shapes of their batches alone. "
_PLACES: Final = 16
_LOOKS: Final = 12
PROBES: Final = 7
"""Beside the context's own next token."""
# Verdicts compare two looks with two.
_PAIRS: Final = 128
# No multiple of a block, so that the steps have other shapes than those of the whole.
_STEP_TOKENS: Final = 97


@dataclass(frozen=True, slots=True)
class Noises:
    """Read from the records, then updated by what this gateway sees."""

    engine: Engine
    directory: EngineDirectory
    records: NoiseRecords
    clock: Clock
    _known: dict[str, Noise] = field(default_factory=dict)
    _locks: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def of(self, identity: EngineIdentity) -> Noise:
        """Without the records what this gateway has seen itself."""
        key = engine_key(identity)
        if key not in self._known:
            try:
                self._known[key] = await self.records.noise(key)
            except CwmError:
                return Noise()
        return self._known[key]

    async def measured(self, identity: EngineIdentity) -> Noise:
        """The noise, measured first if nobody has: a short text is computed twice and looked at :data:`_LOOKS` times."""
        noise = await self.of(identity)
        if noise.is_measured:
            return noise
        async with self._locks[engine_key(identity)]:
            noise = await self.of(identity)
            return noise if noise.is_measured else await self._survey(identity)

    async def learn(
        self,
        identity: EngineIdentity,
        distances: Sequence[Distance],
        computed_twice: float | None = None,
    ) -> Noise:
        """Record how far looks at the same KV were apart, and how far a context that was computed twice, in nats."""
        key = engine_key(identity)
        try:
            noise = await self.records.add_noise(key, distances, self.clock.now(), computed_twice)
        except CwmError:
            noise = self._known.get(key, Noise()).plus(distances, computed_twice)
        self._known[key] = noise
        if noise.is_too_large and not identity.no_reuse:
            self.directory.forget(identity.engine)  # the next use sees that nothing is reused there
        return noise

    async def _survey(self, identity: EngineIdentity) -> Noise:
        chunk = identity.chunk_size or identity.reused_block
        ids = await self.engine.tokenize(identity.model, _TEXT, add_special_tokens=False)
        length = _PLACES * chunk + 1
        token_ids = fitting((ids * (length // len(ids) + 1))[:length], identity)
        places = places_of(len(token_ids), chunk, _PLACES)
        if not places:
            return await self.of(identity)
        salt = self.directory.clean_room(_TENANT, identity)
        whole, stepped = Prefix(token_ids, salt, identity), Prefix(token_ids, f"{salt}-steps", identity)
        await computed(self.engine.complete, whole)
        for end in (*range(_STEP_TOKENS, len(token_ids), _STEP_TOKENS), len(token_ids)):
            await computed(self.engine.complete, replace(stepped, token_ids=token_ids[:end]))
        # In two shapes, as looks are in company.
        looks = [await self._look(whole, places if number % 2 else places[-1:]) for number in range(_LOOKS)]
        twice = distance(looks, [await self._look(stepped, places) for _ in range(2)])
        pairs = list(combinations(looks, 2))
        apart = [
            distance(before, after, looks[0].places)
            for at, before in enumerate(pairs)
            for after in pairs[at + 1 :]
            if not any(one is other for one in before for other in after)
        ]
        return await self.learn(identity, apart[:: max(1, len(apart) // _PAIRS)], twice.largest)

    async def _look(self, prefix: Prefix, places: tuple[int, ...]) -> Look:
        probes = probes_of(prefix.token_ids, PROBES)
        return (await self.engine.look(prefix.request(), places, probes)).look


async def computed(complete: Callable[..., Awaitable[object]], prefix: Prefix) -> None:
    """Have the engine compute the prefix: nothing of it is loaded, nothing stored."""
    await complete(replace(prefix.request(), load_tokens=0, store_tokens=0))
