"""The identity of the engine that serves a model now, and the cache_salt derived from it.

An identity is read once and cached until the engine is seen down: a restarted engine may have other weights, another
dtype or another block size, and the two must not share KV.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import takewhile
from typing import Final
from uuid import uuid4

from cwm.domain.engine import EngineIdentity, deployment_by_name, derive_cache_salt, engine_key
from cwm.domain.engine_health import EngineHealth
from cwm.domain.engine_rules import NO_RULES, EngineRules
from cwm.domain.errors import (
    CwmError,
    EngineConnectionError,
    EngineResponseError,
    EngineTimeoutError,
    InvalidParameterError,
)
from cwm.domain.model_aliases import ModelAliases
from cwm.domain.pooling import POOLING_PATHS, does_not_generate
from cwm.domain.prefix import TokenIds, digest
from cwm.domain.session import Session
from cwm.ports.clock import Clock
from cwm.ports.engine import Completion, Engine, Generation, ServedModel
from cwm.ports.kv_tier import AttachedModel, KvTier, KvTierFacts, PrefixKey

_PROBE_SALT: Final = "cwm1-probe"
_PROBE_TEXT: Final = "CWM asks this engine who it is. "
# Prose, code, digits, white space, accents, other scripts, an emoji of several code points.
_TOKENIZER_PROBE: Final = (
    "The quick brown fox's 1,234,567 jumps; def f(x):\n\treturn x[0]  # naïve façade ÆØÅ\n\n"
    "Быстрая лиса 快速的棕色狐狸 こんにちは 안녕하세요 مرحبا नमस्ते \u00a0\u2028 👩‍👩‍👧‍👦 <|x|> </s>"
)
_DIGEST_CHARS: Final = 16
_REFUSALS: Final = range(400, 500)
_COMPLETIONS: Final = "/v1/completions"
_START: Final = "start:"
# Of a look at one of several engines, which delays none of the others.
_LOOK_SECONDS: Final = 5.0
# How long a placement waits for the coordinator, and how long it is not asked after it did not answer.
_HELD_SECONDS: Final = 0.25
_HELD_AGAIN_SECONDS: Final = 5.0


@dataclass(slots=True, eq=False, repr=False)
class EngineDirectory:
    """Who serves what: the engines, their models, and the identity of each model on each engine.

    ``secret`` is the key of the salts. ``weights_digest`` names the weights of an engine that does not report a digest of
    its own. With neither, stored KV is used only until the engine starts again: its weights may be others then.
    """

    engine: Engine
    kv_tier: KvTier
    secret: bytes
    weights_digest: str
    aliases: ModelAliases = field(default_factory=ModelAliases)
    rules: Mapping[str, EngineRules] = field(default_factory=dict)
    """What the installation says of engines that it lists, by name."""
    _known: dict[tuple[str, str], EngineIdentity] = field(default_factory=dict)
    """By the names of engine and model; under an empty name those that a caller gets who names none."""
    _models: dict[str, list[ServedModel]] = field(default_factory=dict)
    """What each engine serves, as far as is known."""
    _serving: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The engines of each served model; empty while they are not known."""
    health: dict[str, EngineHealth] = field(default_factory=dict)
    """What was seen of each engine, by name."""
    _changed: set[str] = field(default_factory=set)
    """Engines that did not answer since they said what they serve."""
    _sent: int = 0
    _held_again: float = 0.0
    _hardened: set[str] = field(default_factory=set)
    _mute: set[tuple[str, str]] = field(default_factory=set)
    """Models that do not generate, by the names of engine and model."""
    _pooled: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    """What those of them that were asked to generate are for: the paths of their engine's API."""
    _facts: dict[str, KvTierFacts] = field(default_factory=dict)
    _locks: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

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
                if identity.block_size is not None or await self._without_cache(identity.engine):
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
                if (engine, model) not in self._pooled and error.context.get("status") not in _REFUSALS:
                    raise
                self._mute.add((engine, model))
        return ""

    async def asked_for(self, name: str | None, tenant: str) -> EngineIdentity:
        """The identity of the model that a caller means, who may use an alias. CWM-1003 if it is not served to the caller's tenant."""
        if name and ("", name) not in self._known:
            await self._learn(None, tenant)
        return await self.identity(self.meant(name) if name else None, tenant=tenant)

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

    def names(self, tenant: str, *, any_state: bool = False) -> tuple[str, ...]:
        """The engines that serve a tenant; those that are there if any is, unless ``any_state``."""
        names = [name for name in self.engine.names() if self.rules.get(name, NO_RULES).serves(tenant)]
        if any_state:
            return tuple(names)
        return tuple(name for name in names if self._seen(name).is_up) or tuple(names)

    def models(self, tenant: str = "") -> tuple[str, ...]:
        """The models of the engines that serve a tenant and are there, as far as they are known."""
        served = (model.id for name in self.names(tenant) for model in self._models.get(name, ()))
        return tuple(dict.fromkeys(served))

    def is_there(self, engine: str) -> bool:
        """Whether an engine has answered a look and is not gone since."""
        return self._seen(engine).is_up and self._seen(engine).has_answered

    async def served_name(self, client_name: str | None, tenant: str) -> str:
        """The name of the model that a caller means; the only one if none is named. CWM-1003 if it is not served to the tenant.

        Nothing else is asked of it: it may be one that does not generate.
        """
        await self._learn(client_name, tenant)
        served = self.models(tenant)
        name = self.meant(client_name) if client_name else served[0] if len(served) == 1 else None
        if name is None or name not in served:
            raise self._refusal(name, served, tenant)
        return name

    async def candidates(self, model: str, tenant: str) -> tuple[str, ...]:
        """The names of the engines that serve ``model`` to ``tenant`` and are there.

        The one with the least work is the first, of equals the one that was not asked for longest.
        """
        await self._learn(model, tenant)
        serving = self._serving.get(model, ())
        here = [name for name in self.names(tenant) if name in serving and self._seen(name).is_up]
        here = [name for name in here if self._is_well(name)] or here
        return tuple(sorted(here, key=lambda name: (self._seen(name).load, self._seen(name).last_sent)))

    async def deployments(self, model: str, tenant: str) -> dict[str, EngineIdentity]:
        """The identity of ``model`` on each engine that serves it to ``tenant`` and is there, as far as they say it."""
        names = await self.candidates(model, tenant)

        async def said(name: str) -> EngineIdentity | None:
            with suppress(CwmError, TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
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
                if len(token_ids) >= (identity.chunk_size or math.inf)
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

    @property
    def is_one(self) -> bool:
        """Whether there is one engine, of which nothing is said: then there is nothing to choose."""
        return not self.rules and len(self.engine.names()) == 1

    async def takes(self, engine: str | None, model: str, tenant: str) -> bool:
        """Whether an engine is there, serves ``model`` to ``tenant`` and is not full."""
        return await self._is_served(engine or "", model, tenant) and not self.is_full(engine or "")

    async def _is_served(self, engine: str, model: str, tenant: str) -> bool:
        """Whether an engine is there and serves ``model`` to ``tenant``."""
        await self._learn(model, tenant)
        is_served = engine in self._serving.get(model, ()) and self._is_well(engine)
        return is_served and self.rules.get(engine, NO_RULES).serves(tenant)

    async def _learn(self, model: str | None, tenant: str) -> None:
        """Ask those of a tenant's engines that are there and have not said what they serve; all of them if none is known to serve ``model``.

        Raises only if nothing is known then. One that does not say what it serves takes nothing until it has answered a look.
        """
        names = self.names(tenant)
        is_known = model in self._serving if model else any(name in self._models for name in names)
        if not is_known:
            await self._look(names)
            return
        silent = [name for name in names if name not in self._models and self._is_well(name)]
        with suppress(CwmError):
            await self._look(silent)
        for name in silent:
            if name not in self._models:
                self.lose(name)

    def _is_well(self, engine: str) -> bool:
        return self._seen(engine).is_up and not self._seen(engine).is_lost

    def is_router(self, engine: str) -> bool:
        """Whether it chooses an engine itself."""
        return self.rules.get(engine, NO_RULES).is_router

    def is_full(self, engine: str) -> bool:
        most = self.rules.get(engine, NO_RULES).max_running
        return most is not None and self._seen(engine).load >= most

    @contextmanager
    def works(self, engine: str) -> Iterator[None]:
        """Counts a request to an engine, from when it is decided to its end."""
        health = self._seen(engine)
        self._sent += 1
        health.sent, health.last_sent = health.sent + 1, self._sent
        try:
            yield
        finally:
            health.sent -= 1

    def _is_reserved(self, tenant: str) -> bool:
        """Whether some engine does not serve a tenant."""
        return not all(rules.serves(tenant) for rules in self.rules.values())

    async def _one_for(self, model: str | None, tenant: str) -> str:
        await self._learn(model, tenant)
        names = [name for name in self.names(tenant) if name in self._models]
        for name in names:
            if model is None or name in self._serving.get(model, ()):
                return name
        raise self._refusal(model, [served.id for name in names for served in self._models[name]], tenant)

    def _refusal(self, model: str | None, served: Sequence[str], tenant: str) -> CwmError:
        """Why no engine that is there serves ``model`` to ``tenant``: those that do may only be away, and then it is to be asked again."""
        names = self.names(tenant, any_state=True)
        if model is not None and any(name in names for name in self._serving.get(model, ())):
            return EngineConnectionError(f"No engine that serves '{model}' answers.", model=model)
        return _not_served(model, served)

    def lose(self, engine: str) -> None:
        """The engine broke a connection or took none: while there is another, it takes nothing until it has answered a look."""
        if engine:
            self._seen(engine).is_lost = True

    async def answers(self, engine: str) -> bool:
        """Whether an engine answers now. One that does not is lost."""
        with suppress(CwmError, TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                await self.engine.on(engine).health()
                return True
        self.lose(engine)
        return False

    def _seen(self, engine: str) -> EngineHealth:
        return self.health.setdefault(engine, EngineHealth())

    def meant(self, name: str) -> str:
        """The model that a caller means by ``name``, as far as is known without asking the engines; else ``name``."""
        models = self._serving.keys() or set(self.aliases.by_pattern.values())
        return self.aliases.served(name, models) or name

    def salt(self, tenant: str, salt_scope: str, identity: EngineIdentity) -> str:
        return derive_cache_salt(self.secret, f"{tenant}\x1f{salt_scope}", identity)

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

    def survives_aborts(self, identity: EngineIdentity) -> bool:
        """Whether the engine has CWM's connector, so that a request may be aborted while its KV is being loaded."""
        return identity.weights_digest in self._hardened

    def forget(self, engine: str = "") -> None:
        """Clear the cache, or what it has of one engine; the next use reads the identities again."""
        self._known = {key: known for key, known in self._known.items() if engine not in {"", known.engine}}
        self._mute = {key for key in self._mute if engine not in {"", key[0]}}
        self._pooled = {key: paths for key, paths in self._pooled.items() if engine not in {"", key[0]}}
        if engine:
            self._changed.add(engine)
        else:
            self._models, self._serving = {}, {}

    async def watch(self, interval_seconds: float, clock: Clock) -> None:
        """Look at every engine again and again, and forget those that do not answer. Runs until cancelled.

        The interval must be shorter than the restart of any engine. One that is slow to answer delays no look at the others.
        """
        looks: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                names = self.engine.names()
                looks = {name: look for name, look in looks.items() if name in names and not look.done()}
                for gone in self.health.keys() - set(names):
                    # An address that comes back may be another engine's.
                    del self.health[gone]
                for name in names:
                    if name not in looks:
                        looks[name] = group.create_task(self.look_at(name, clock))
                await asyncio.sleep(interval_seconds)

    async def look_at(self, name: str, clock: Clock) -> None:
        """Ask one engine whether it is well; and if there are others, how much it has to do, and what it serves if that is not known."""
        health, reason = self._seen(name), ""
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                await self.engine.on(name).health()
        except CwmError as error:
            self.forget(name)
            reason = error.message
        except TimeoutError:
            reason = f"It did not answer within {_LOOK_SECONDS:g} s."
        if reason:
            health.failed(clock.now(), reason)
            return
        health.answered(clock.now())
        if self.is_one:
            return
        with suppress(CwmError, TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                counters = await self.engine.on(name).counters()
            health.counted(counters.requests_running, counters.requests_waiting)
        if name not in self._models or name in self._changed:
            with suppress(CwmError):
                await self._look([name])

    def _serve(self, models: dict[str, list[ServedModel]]) -> None:
        """Note what each engine serves."""
        self._models, self._serving = models, {}
        for name in self.engine.names():
            for served in models.get(name, ()):
                self._serving[served.id] = (*self._serving.get(served.id, ()), name)

    async def _without_cache(self, engine: str) -> bool:
        """Whether no LMCache is configured. One that does not answer yet still counts as configured."""
        try:
            return engine not in self._facts and await self.kv_tier.beside(engine).facts() is None
        except EngineConnectionError:
            return False

    async def _facts_now(self, engine: str) -> KvTierFacts | None:
        try:
            facts = await self.kv_tier.beside(engine).facts()
        except EngineConnectionError:
            return self._facts.get(engine)
        if facts is not None:
            self._facts[engine] = facts
        return facts

    async def _look(self, names: Sequence[str]) -> dict[str, list[ServedModel]]:
        """The models of those of the engines that answer. The first one's error if none does."""
        answers = await asyncio.gather(*(self._models_of(name) for name in names), return_exceptions=True)
        by_engine = {
            name: answer
            for name, answer in zip(names, answers, strict=True)
            if not isinstance(answer, BaseException)
        }
        for answer in answers:
            if isinstance(answer, BaseException) and (not by_engine or not isinstance(answer, CwmError)):
                raise answer
        self._changed -= by_engine.keys()
        self._serve({**self._models, **by_engine})
        # The list may have changed meanwhile.
        return {name: models for name, models in by_engine.items() if name in self.engine.names()}

    async def _models_of(self, engine: str) -> list[ServedModel]:
        """CWM-6001 for one of several engines that holds up the others."""
        if self.is_one:
            return await self.engine.on(engine).models()
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                return await self.engine.on(engine).models()
        except TimeoutError:
            raise EngineTimeoutError(
                f"Engine '{engine}' does not answer within {_LOOK_SECONDS:g} s.", engine=engine
            ) from None

    async def _ask(self, model: str | None, engine: str) -> EngineIdentity:
        """Of the first model that generates if none is named."""
        by_engine = await self._look([engine] if engine else self.names(""))
        if model is not None:
            try:
                offer = _choose(by_engine, model, engine)
            except InvalidParameterError:
                if engine:
                    raise
                served = [each.id for models in by_engine.values() for each in models]
                raise self._refusal(model, served, "") from None
            return await self._probe(*offer)
        refusal: CwmError | None = None
        for offer in _offers(by_engine, engine):
            try:
                return await self._probe(*offer)
            except (EngineResponseError, InvalidParameterError) as error:
                refusal = refusal or error
        raise refusal or EngineResponseError("The engine serves no model.")

    async def _probe(self, name: str, served: ServedModel) -> EngineIdentity:
        if paths := self._pooled.get((name, served.id)):
            raise does_not_generate(served.id, paths)
        engine, facts = self.engine.on(name), await self._facts_now(name)
        probe = await _probe_ids(engine, served, facts)
        salt = f"{_PROBE_SALT}-{_text_digest(served.adapter)}" if served.adapter else _PROBE_SALT
        answer = await self._first_answer(
            engine, Generation(served.id, probe, salt, max_tokens=1, engine=name)
        )
        attached = _attached(facts, served)
        if facts is not None and attached is None:
            # LMCache lists the model only after the probe has stored something.
            facts = await self._facts_now(name) or facts
            attached = _attached(facts, served)
        weights, fingerprint = await self._weights(engine, answer, facts), answer.fingerprint or ""
        if not answer.weights and (deployment := self.rules.get(name, NO_RULES).deployment):
            weights = fingerprint = deployment_by_name(deployment)
        return EngineIdentity(
            model=served.id,
            root=served.root,
            fingerprint=fingerprint,
            max_model_len=served.max_model_len,
            vllm_version=await engine.version(),
            chunk_size=facts.chunk_size if facts else None,
            block_size=attached.block_size if attached else None,
            hash_algorithm=facts.hash_algorithm if facts else None,
            world_size=attached.world_size if attached else 1,
            lmcache_version=facts.version if facts else None,
            weights_digest=weights,
            kv_dtype=await engine.kv_dtype(),
            tokenizer_digest=digest(
                await engine.tokenize(served.id, _TOKENIZER_PROBE, add_special_tokens=True)
            )[:_DIGEST_CHARS],
            template_digest=_text_digest(await engine.chat_template(served.id)),
            adapter=served.adapter,
            engine=name,
        )

    async def _first_answer(self, engine: Engine, probe: Generation) -> Completion:
        """CWM-1003 from an engine that has no path for it, if it says which ones it has: the model does not generate."""
        try:
            return await engine.complete(probe)
        except EngineResponseError as refusal:
            served = await engine.paths() if refusal.context.get("status") == HTTPStatus.NOT_FOUND else ()
            paths = tuple(path for path in POOLING_PATHS if path in served)
            if not paths or _COMPLETIONS in served:
                raise
            self._pooled[probe.engine or "", probe.model] = paths
            raise does_not_generate(probe.model, paths) from refusal

    async def _weights(self, engine: Engine, answer: Completion, facts: KvTierFacts | None) -> str:
        """What stands for the weights: the engine's own digest, else the configured one, else the start of the engine."""
        if answer.weights:
            self._hardened.add(answer.weights)
        weights = answer.weights or self.weights_digest
        if weights or facts is None:
            return weights
        return f"{_START}{await engine.started() or uuid4().hex}"


async def _probe_ids(engine: Engine, served: ServedModel, facts: KvTierFacts | None) -> TokenIds:
    """Token ids for a probe of more than one chunk, which also starts LMCache's heartbeat in vLLM."""
    ids = await engine.tokenize(served.id, _PROBE_TEXT, add_special_tokens=False)
    token_count = min((facts.chunk_size if facts else 16) + 1, served.max_model_len - 1)
    return (ids * (token_count // len(ids) + 1))[:token_count]


def _attached(facts: KvTierFacts | None, served: ServedModel) -> AttachedModel | None:
    return next((a for a in facts.attached if a.root == served.root), None) if facts else None


def _text_digest(text: str | None) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS] if text else ""


def _offers(by_engine: Mapping[str, list[ServedModel]], engine: str) -> list[tuple[str, ServedModel]]:
    return [(name, served) for name, models in by_engine.items() for served in models if engine in {"", name}]


def _choose(by_engine: Mapping[str, list[ServedModel]], model: str, engine: str) -> tuple[str, ServedModel]:
    """The engine's name, and the model on it: the first that serves it unless one is named."""
    offers = _offers(by_engine, engine)
    if not offers:
        raise EngineResponseError("The engine serves no model.")
    for name, served in offers:
        if model == served.id:
            return name, served
    raise _not_served(model, [served.id for _, served in offers])


def _not_served(model: str | None, served: Sequence[str]) -> InvalidParameterError:
    return InvalidParameterError(
        f"The engine does not serve the model '{model}'." if model else "No engine serves a model here.",
        field="model",
        served=list(dict.fromkeys(served)),
    )
