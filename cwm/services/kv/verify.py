"""Verify: record a canary of a window's KV, and compare restored KV with it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from cwm.background import BackgroundTasks
from cwm.domain.canary import Canary, Origin, origin_of
from cwm.domain.errors import InvalidParameterError
from cwm.domain.look import Look, distance, places_of, probes_of
from cwm.domain.verdict import Evidence, Verification, compare, skipped
from cwm.ports.engine import Completion, Engine
from cwm.services.aside import outlasting
from cwm.services.engines.directory import EngineDirectory
from cwm.services.kv.noises import PROBES, Noises
from cwm.services.kv.prefix import Prefix

_EVICTED: Final = "the engine evicted part of the context before it was looked at, or refuses looks"


@dataclass(frozen=True, slots=True)
class Recording:
    """The engine's answer when it was asked for the whole context, and the canary; None where the engine evicted the KV meanwhile."""

    answer: Completion
    canary: Canary | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The evidence of looks at restored KV, and the looks; a verdict of ``undecided`` asks for a control."""

    evidence: Evidence
    looks: tuple[Look, ...] = ()


def canary_of(looks: tuple[Look, Look], origin: Origin) -> Canary:
    """A canary of two looks at the same KV: at all of the places and the probes, and at the probes alone."""
    every, few = looks
    return Canary(every, origin, few)


@dataclass(frozen=True, slots=True)
class Verify:
    """``most_places``: how many places a canary has at most; 0 for no canaries."""

    engine: Engine
    directory: EngineDirectory
    noises: Noises
    most_places: int
    _looking: BackgroundTasks = field(default_factory=BackgroundTasks)

    def places(self, prefix: Prefix) -> tuple[int, ...]:
        """The places of a canary of ``prefix``; none where nothing is stored, or without canaries."""
        chunk_size = prefix.identity.chunk_size
        if not prefix.chunk_count or not chunk_size:
            return ()
        return places_of(len(prefix.token_ids), chunk_size, self.most_places)

    async def record(self, prefix: Prefix, proven_tokens: int = 0, known: Canary | None = None) -> Recording:
        """Have the engine hold the whole context, which stores what is missing, and look at it.

        ``proven_tokens``: of the tokens that the engine loaded, those whose verdict was good. ``known``: the canary that there is of this KV
        already, which proves what was loaded if it agrees. CWM-5002 if another engine answers.
        """
        answer = await self._asked(prefix)
        looks = await self.looked(prefix, self.places(prefix))
        if looks is None:
            return Recording(answer, None)
        origin = origin_of(answer.resting_tokens, proven_tokens)
        if not origin.is_proven and known is not None and compare(known, looks).verification.is_good:
            origin = Origin.INHERITED
        return Recording(answer, canary_of(looks, origin))

    async def look(self, prefix: Prefix, places: tuple[int, ...]) -> Look | None:
        """A look at these places and at the probes behind the last.

        None if the engine had not all of the context in its cache any more, or refuses such requests. The request is never abandoned half-way.
        """
        probes = probes_of(prefix.token_ids, PROBES)
        looking = self._looking.start(self.engine.look(prefix.request(), places, probes))
        try:
            answer = await outlasting(looking)
        except InvalidParameterError:
            return None
        return answer.look if answer.cached_tokens >= places[-1] - 1 else None

    async def compare(self, prefix: Prefix, canary: Canary) -> Comparison:
        """Look at the probes; if more of them differ than by noise, twice at all places. ``undecided`` where only a control can tell."""
        places = self.places(prefix)
        if not places or canary.sure_places[0] != places[-1]:
            return Comparison(skipped("the canary is of another length"))
        few = await self.look(prefix, places[-1:])
        if few is None:
            return Comparison(skipped(_EVICTED))
        evidence = compare(canary, [few])
        if evidence.distance.is_exact:
            return Comparison(evidence, (few,))
        noise = await self.noises.measured(prefix.identity)
        # Limits of more than a nat would allow what damage does: the control says that nothing can be told.
        limits = None if noise.is_too_large else noise.limits
        evidence = compare(canary, [few], limits)
        if evidence.verification is not Verification.UNDECIDED:
            return Comparison(evidence, (few,))
        first, second = await self.looked(prefix, places), await self.looked(prefix, places)
        if first is None or second is None:
            return Comparison(skipped(_EVICTED))
        # Whatever the verdict: looks at the same KV tell the noise.
        noise = await self.noises.learn(prefix.identity, [distance(first, second, canary.sure_places)])
        limits = None if noise.is_too_large else noise.limits
        looks = (few, *first, *second)
        return Comparison(compare(canary, looks, limits), looks)

    async def looked(self, prefix: Prefix, places: tuple[int, ...]) -> tuple[Look, Look] | None:
        """Two looks, in batches of other shapes: at all of the places and the probes, and at the last place and the probes."""
        every = await self.look(prefix, places) if places else None
        few = await self.look(prefix, places[-1:]) if places else None
        return None if every is None or few is None else (every, few)

    async def settle(self) -> None:
        """Wait for looks whose callers have disconnected."""
        await self._looking.settled()

    async def _asked(self, prefix: Prefix) -> Completion:
        request = replace(prefix.request(), tell_loaded=True)
        answer = await outlasting(self._looking.start(self.engine.complete(request)))
        self.directory.confirm(prefix.identity, answer)
        return answer
