"""The identity of the engine that serves a model now, and the cache_salt derived from it.

An identity is read once and cached until the engine is seen down: a restarted engine may have other weights, another
dtype or another block size, and the two must not share KV.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Final

from cwm.domain.engine import EngineIdentity, derive_cache_salt, engine_key
from cwm.domain.engine_rules import NO_RULES
from cwm.domain.errors import (
    CwmError,
    EngineConnectionError,
    EngineResponseError,
    InvalidParameterError,
    ModelDoesNotGenerateError,
)
from cwm.domain.noise import CANNOT_BE_JUDGED
from cwm.domain.prefix import TokenIds
from cwm.domain.session import Session
from cwm.ports.engine import Completion, ServedModel
from cwm.ports.kv_tier import KvTier, PrefixKey
from cwm.ports.noise import NoiseRecords
from cwm.services.engines.probe import Probe
from cwm.services.engines.roster import EngineRoster
from cwm.services.engines.served_models import choose, offers

_REFUSALS: Final = range(400, 500)
# How long a placement waits for the coordinator, and how long it is not asked after it did not answer.
_HELD_SECONDS: Final = 0.25
_HELD_AGAIN_SECONDS: Final = 5.0
# Of an identity of one of several engines, which delays none of the others.
_IDENTITY_SECONDS: Final = 5.0


@dataclass(eq=False, repr=False)
class EngineDirectory(EngineRoster):
    """Who serves what: the engines, their models, and the identity of each model on each engine.

    ``secret`` is the key of the salts. ``weights_digest`` names the weights of an engine that does not report a digest of
    its own. With neither, stored KV is used only until the engine starts again: its weights may be others then.
    No KV is reused on an engine that is too noisy by the records of ``noise``.
    """

    kv_tier: KvTier
    secret: bytes
    weights_digest: str
    noise: NoiseRecords | None = None
    _known: dict[tuple[str, str], EngineIdentity] = field(default_factory=dict, init=False)
    """By the names of engine and model; under an empty name those that a caller gets who names none."""
    _held_again: float = field(default=0.0, init=False)
    _noisy: dict[str, bool] = field(default_factory=dict, init=False)
    """By engine keys."""
    _mute: set[tuple[str, str]] = field(default_factory=set, init=False)
    """Models that do not generate, by the names of engine and model."""
    _locks: defaultdict[str, asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock), init=False
    )
    _probe: Probe = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._probe = Probe(self.engine, self.kv_tier, self.weights_digest)

    async def identity(self, model: str | None = None, engine: str = "", tenant: str = "") -> EngineIdentity:
        """The identity of ``model``, by default of the first model served, on ``engine``, by default on the first that serves it to ``tenant``.

        CWM-1003 if it is not served, or does not generate.
        """
        if not engine and self._is_reserved(tenant):
            engine = await self._one_for(model, tenant)
        key = (engine, model or "")
        identity = self._known.get(key)
        if identity is not None and not await self._was_replaced(identity):
            return identity
        async with self._locks[engine]:
            identity = self._known.get(key)
            if identity is None:
                try:
                    identity = await self._ask(model, engine)
                except EngineConnectionError:
                    self.lose(engine)
                    raise
                # An identity without its block size must not be cached: its salt would differ from the real one for good.
                if identity.block_size is not None or await self._probe.without_cache(identity.engine):
                    for known in (key, (engine, identity.model), (identity.engine, identity.model)):
                        self._known[known] = identity
        return identity

    async def _was_replaced(self, identity: EngineIdentity) -> bool:
        """Whether another adapter has this name by now, or none: vLLM loads adapters while it runs, and LMCache does not tell them apart."""
        if not identity.adapter:
            return False
        served = await self.engine.on(identity.engine).models()
        if any((each.id, each.adapter) == (identity.model, identity.adapter) for each in served):
            return False
        self.forget(identity.engine)
        return True

    async def deployment_of(self, model: str, engine: str) -> str:
        """The deployment of a model on an engine; empty for one that does not generate: it has no KV that anybody could reuse.

        Such a model is asked once, until the engine is forgotten. CWM-5001, 5002, 6001.
        """
        if (engine, model) not in self._mute:
            try:
                return (await self.identity(model, engine)).fingerprint
            except (EngineResponseError, InvalidParameterError) as error:
                if not self._probe.is_pooled(engine, model) and error.context.get("status") not in _REFUSALS:
                    raise
                self._mute.add((engine, model))
        return ""

    async def asked_for(self, name: str | None, tenant: str) -> EngineIdentity:
        """The identity of the model that a caller means, who may use an alias. CWM-1003 if it is not served to the caller's tenant."""
        if name and ("", name) not in self._known:
            await self._learn(None, tenant)
        return await self.identity(self.meant(name) if name else None, tenant=tenant)

    async def served(self, name: str | None, tenant: str) -> EngineIdentity | None:
        """As :meth:`asked_for`; None for a model that is not served. CWM-1003 for one that does not generate."""
        try:
            return await self.asked_for(name, tenant)
        except ModelDoesNotGenerateError:
            raise
        except InvalidParameterError:
            return None

    async def of(self, session: Session, cache_salt: str | None = None) -> EngineIdentity:
        """The identity of a session's model on the engine that serves the session; if that is gone or not for its tenant, on another that serves the model.

        ``cache_salt``: of the KV that is meant; an engine of its deployment comes first.
        """
        model, tenant, engine = session.model, session.tenant, session.engine or ""
        if not self.is_one and not await self._is_served(engine, model, tenant):
            engine = next(iter(await self.candidates(model, tenant)), "")
            others = (await self.deployments(model, tenant)).items() if cache_salt else ()
            for name, identity in others:
                if self.salt(tenant, session.salt_scope, identity) == cache_salt:
                    return await self.identity(model, name, tenant)
        return await self.identity(model, engine, tenant)

    async def deployments(self, model: str, tenant: str) -> dict[str, EngineIdentity]:
        """The identity of ``model`` on each engine that serves it to ``tenant`` and is there, as far as they say it."""
        names = await self.candidates(model, tenant)

        async def said(name: str) -> EngineIdentity | None:
            with suppress(CwmError, TimeoutError):
                async with asyncio.timeout(_IDENTITY_SECONDS):
                    return await self.identity(model, name)
            return None

        identities = await asyncio.gather(*(said(name) for name in names))
        return {name: each for name, each in zip(names, identities, strict=True) if each is not None}

    def known(self, model: str, engines: Sequence[str]) -> dict[str, EngineIdentity]:
        """The identity of ``model`` on those of the engines of which it was read; nothing is asked."""
        return {name: self._known[name, model] for name in engines if (name, model) in self._known}

    def known_deployments(self, engine: str) -> dict[str, str]:
        """The deployment of each model of an engine that other engines serve in another one, as far as is known."""
        mine = {model: known for (name, model), known in self._known.items() if name == engine and model}
        return {
            model: known.fingerprint
            for model, known in mine.items()
            if any(other.model == model and other != known for other in self._known.values())
        }

    async def like(self, then: EngineIdentity, tenant: str) -> EngineIdentity:
        """The identity of a model on an engine of the same deployment if there is one, else on the first that serves it. CWM-1003."""
        if not self.is_one:
            for identity in (await self.deployments(then.model, tenant)).values():
                if engine_key(identity) == engine_key(then):
                    return identity
        return await self.identity(then.model, tenant=tenant)

    async def held(
        self, model: str, engines: Sequence[str], tenant: str, salt_scope: str, token_ids: TokenIds
    ) -> Mapping[str, int]:
        """How many leading chunks of a prefix these engines have on their own, by the coordinator's directory.

        Empty if it does not answer soon; then it is not asked again for a while.
        """
        now = asyncio.get_running_loop().time()
        if now < self._held_again:
            return {}
        chunk_counts: Counter[str] = Counter()
        try:
            known = [self._known[name, model] for name in engines if (name, model) in self._known]
            # Engines of one deployment share a salt.
            keys = {
                salt: PrefixKey(identity.root, identity.world_size, token_ids, salt)
                for identity in known or [await self.identity(model, engines[0])]
                if len(token_ids) >= (identity.stored_chunk or math.inf)
                for salt in (self.salt(tenant, salt_scope, identity),)
            }
            async with asyncio.timeout(_HELD_SECONDS):
                for chunks in await asyncio.gather(*(self.kv_tier.lookup(key) for key in keys.values())):
                    for name in engines:
                        leading = takewhile(lambda chunk, name=name: name in chunk.engines, chunks)  # type: ignore[misc]
                        chunk_counts[name] = max(chunk_counts[name], sum(1 for _ in leading))
        except (CwmError, TimeoutError):
            self._held_again = now + _HELD_AGAIN_SECONDS
        return chunk_counts

    def salt(self, tenant: str, salt_scope: str, identity: EngineIdentity) -> str:
        return derive_cache_salt(self.secret, f"{tenant}\x1f{salt_scope}", identity)

    def clean_room(self, tenant: str, identity: EngineIdentity) -> str:
        """The salt under which nothing is loaded and nothing stored: what the engine has under it was computed since it started.

        No salt scope has this name: scopes of sessions and tenants have a colon.
        """
        return self.salt(tenant, "clean room", identity)

    def plain_salt(self, tenant: str, model: str) -> str:
        """The salt of a model of which nothing but its name is known: it keeps tenants apart in the engine's own cache."""
        return self.salt(tenant, "", EngineIdentity(model, model, "", 0, ""))

    async def cache_salt(self, tenant: str, salt_scope: str, model: str | None) -> str:
        """The salt of a scope on the engine that serves ``model`` now."""
        return self.salt(tenant, salt_scope, await self.identity(model))

    def confirm(self, identity: EngineIdentity, answer: Completion) -> None:
        """Raise CWM-5002 and clear the cache if another engine than ``identity``, or one with other weights, answered."""
        fingerprint = None if identity.is_by_name else answer.fingerprint
        facts = ((identity.fingerprint, fingerprint), (identity.weights_digest, answer.weights))
        for expected, actual in facts:
            if actual is not None and actual != expected:
                self.forget()
                raise EngineResponseError(
                    "The engine changed while it was being used; the next attempt sees the new one.",
                    expected=expected,
                    answered=actual,
                )
        expected = "" if identity.no_reuse == CANNOT_BE_JUDGED else identity.no_reuse
        if (answer.weights or answer.no_reuse) and bool(answer.no_reuse) != bool(expected):
            self.forget()
            raise EngineResponseError(
                "The engine changed while it was being used: whether it reuses KV; the next attempt sees the new one.",
                expected=expected,
                answered=answer.no_reuse,
            )

    def no_reuse(self, engine: str = "") -> str:
        """Why an engine, or for an empty name any of them, reuses no KV, as far as is known; empty where it does. Nothing is asked."""
        known = (each for each in self._known.values() if engine in {"", each.engine})
        return next((each.no_reuse for each in known if each.no_reuse), "")

    def switches(self, identity: EngineIdentity) -> frozenset[str]:
        """The variables for thoughts that the template of a model reads."""
        return self._probe.switches(identity)

    def survives_aborts(self, identity: EngineIdentity) -> bool:
        """Whether the engine has CWM's connector, so that a request may be aborted while its KV is being loaded."""
        return self._probe.survives_aborts(identity)

    def forget(self, engine: str = "") -> None:
        """Clear the cache, or what it has of one engine; the next use reads the identities again."""
        self._known = {key: known for key, known in self._known.items() if engine not in {"", known.engine}}
        self._mute = {key for key in self._mute if engine not in {"", key[0]}}
        self._probe.forget(engine)
        super().forget(engine)

    async def _ask(self, model: str | None, engine: str) -> EngineIdentity:
        """Of the first model that generates if none is named."""
        by_engine = await self._look([engine] if engine else self.names(""))
        if model is not None:
            try:
                offer = choose(by_engine, model, engine)
            except InvalidParameterError:
                if engine:
                    raise
                served = [each.id for models in by_engine.values() for each in models]
                raise self._refusal(model, served, "") from None
            return await self._identity_of(*offer)
        refusal: CwmError | None = None
        for offer in offers(by_engine, engine):
            try:
                return await self._identity_of(*offer)
            except (EngineResponseError, InvalidParameterError) as error:
                refusal = refusal or error
        raise refusal or EngineResponseError("The engine serves no model.")

    async def _identity_of(self, name: str, served: ServedModel) -> EngineIdentity:
        identity = await self._probe.identity(name, served, lambda: self.rules.get(name, NO_RULES).deployment)
        if not identity.no_reuse and await self._is_too_noisy(identity):
            return replace(identity, no_reuse=CANNOT_BE_JUDGED)
        return identity

    async def _is_too_noisy(self, identity: EngineIdentity) -> bool:
        """By what all gateways have measured. While the records cannot be read, what was last read of the engine counts."""
        key = engine_key(identity)
        if self.noise is not None:
            with suppress(CwmError):
                self._noisy[key] = (await self.noise.noise(key)).is_too_large
        return self._noisy.get(key, False)
