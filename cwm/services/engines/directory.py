"""The identity of the engine that serves a model now, and the cache_salt derived from it.

An identity is read once and cached until the engine is seen down: a restarted engine may have other weights, another
dtype or another block size, and the two must not share KV.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from cwm.domain.engine import EngineIdentity, derive_cache_salt
from cwm.domain.errors import CwmError, EngineConnectionError, EngineResponseError, InvalidParameterError
from cwm.domain.model_aliases import ModelAliases
from cwm.domain.prefix import TokenIds, digest
from cwm.ports.engine import Completion, Engine, Generation, ServedModel
from cwm.ports.kv_tier import AttachedModel, KvTier, KvTierFacts

_PROBE_SALT: Final = "cwm1-probe"
_PROBE_TEXT: Final = "CWM asks this engine who it is. "
# Prose, code, digits, white space, accents, other scripts, an emoji of several code points.
_TOKENIZER_PROBE: Final = (
    "The quick brown fox's 1,234,567 jumps; def f(x):\n\treturn x[0]  # naïve façade ÆØÅ\n\n"
    "Быстрая лиса 快速的棕色狐狸 こんにちは 안녕하세요 مرحبا नमस्ते \u00a0\u2028 👩‍👩‍👧‍👦 <|x|> </s>"
)
_DIGEST_CHARS: Final = 16
_START: Final = "start:"


@dataclass(slots=True, eq=False, repr=False)
class EngineDirectory:
    """Engine identities by model name.

    ``secret`` is the key of the salts. ``weights_digest`` names the weights of an engine that does not report a digest of
    its own. With neither, stored KV is used only until the engine starts again: its weights may be others then.
    """

    engine: Engine
    kv_tier: KvTier
    secret: bytes
    weights_digest: str
    aliases: ModelAliases = field(default_factory=ModelAliases)
    _known: dict[str, EngineIdentity] = field(default_factory=dict)
    _served: frozenset[str] = frozenset()
    """Names of the served models; empty while they are not known."""
    _hardened: set[str] = field(default_factory=set)
    _facts: KvTierFacts | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def identity(self, model: str | None = None) -> EngineIdentity:
        """The identity of ``model``, by default of the first model served. CWM-1003 if it is not served."""
        identity = self._known.get(model or "")
        if identity is not None:
            return identity
        async with self._lock:
            identity = self._known.get(model or "")
            if identity is None:
                identity = await self._ask(model)
                # An identity without its block size must not be cached: its salt would differ from the real one for good.
                if identity.block_size is not None or await self._without_cache():
                    self._known[model or ""] = self._known[identity.model] = identity
        return identity

    async def asked_for(self, name: str | None) -> EngineIdentity:
        """The identity of the model that a caller means, who may use an alias. CWM-1003 if it is not served."""
        if name and name not in self._known and not self._served:
            self._served = frozenset(served.id for served in await self.engine.models())
        return await self.identity(self.meant(name) if name else None)

    def meant(self, name: str) -> str:
        """The model that a caller means by ``name``, as far as is known without asking the engine; else ``name``."""
        models = self._served or set(self.aliases.by_pattern.values())
        return self.aliases.served(name, models) or name

    def salt(self, tenant: str, salt_scope: str, identity: EngineIdentity) -> str:
        return derive_cache_salt(self.secret, f"{tenant}\x1f{salt_scope}", identity)

    async def cache_salt(self, tenant: str, salt_scope: str, model: str | None) -> str:
        """The salt of a scope on the engine that serves ``model`` now."""
        return self.salt(tenant, salt_scope, await self.identity(model))

    def confirm(self, identity: EngineIdentity, answer: Completion) -> None:
        """Raise CWM-5002 and clear the cache if another engine than ``identity``, or one with other weights, answered."""
        facts = ((identity.fingerprint, answer.fingerprint), (identity.weights_digest, answer.weights))
        for expected, answered in facts:
            if answered is not None and answered != expected:
                self.forget()
                raise EngineResponseError(
                    "The engine changed while it was being used; the next attempt sees the new one.",
                    expected=expected,
                    answered=answered,
                )

    def survives_aborts(self, identity: EngineIdentity) -> bool:
        """Whether the engine has CWM's connector, so that a request may be aborted while its KV is being loaded."""
        return identity.weights_digest in self._hardened

    def forget(self) -> None:
        """Clear the cache; the next use reads the identity again."""
        self._known.clear()
        self._served = frozenset()

    async def watch(self, interval_seconds: float) -> None:
        """Clear the cache whenever the engine is seen down. Runs until cancelled.

        The interval must be shorter than the restart of any engine.
        """
        while True:
            try:
                await self.engine.health()
            except CwmError:
                self.forget()
            await asyncio.sleep(interval_seconds)

    async def _without_cache(self) -> bool:
        """Whether no LMCache is configured. One that does not answer yet still counts as configured."""
        try:
            return self._facts is None and await self.kv_tier.facts() is None
        except EngineConnectionError:
            return False

    async def _facts_now(self) -> KvTierFacts | None:
        try:
            facts = await self.kv_tier.facts()
        except EngineConnectionError:
            return self._facts
        self._facts = facts or self._facts
        return facts

    async def _ask(self, model: str | None) -> EngineIdentity:
        models = await self.engine.models()
        self._served = frozenset(served.id for served in models)
        served = _choose(models, model)
        facts = await self._facts_now()
        probe = await self._probe_ids(served, facts)
        answer = await self.engine.complete(Generation(served.id, probe, _PROBE_SALT, max_tokens=1))
        attached = _attached(facts, served)
        if facts is not None and attached is None:
            # LMCache lists the model only after the probe has stored something.
            facts = await self._facts_now() or facts
            attached = _attached(facts, served)
        return EngineIdentity(
            model=served.id,
            root=served.root,
            fingerprint=answer.fingerprint or "",
            max_model_len=served.max_model_len,
            vllm_version=await self.engine.version(),
            chunk_size=facts.chunk_size if facts else None,
            block_size=attached.block_size if attached else None,
            hash_algorithm=facts.hash_algorithm if facts else None,
            world_size=attached.world_size if attached else 1,
            lmcache_version=facts.version if facts else None,
            weights_digest=await self._weights(answer, facts),
            kv_dtype=await self.engine.kv_dtype(),
            tokenizer_digest=digest(
                await self.engine.tokenize(served.id, _TOKENIZER_PROBE, add_special_tokens=True)
            )[:_DIGEST_CHARS],
            template_digest=_text_digest(await self.engine.chat_template(served.id)),
        )

    async def _weights(self, answer: Completion, facts: KvTierFacts | None) -> str:
        """What stands for the weights: the engine's own digest, else the configured one, else the start of the engine."""
        if answer.weights:
            self._hardened.add(answer.weights)
        weights = answer.weights or self.weights_digest
        if weights or facts is None:
            return weights
        return f"{_START}{await self.engine.started() or uuid4().hex}"

    async def _probe_ids(self, served: ServedModel, facts: KvTierFacts | None) -> TokenIds:
        """Token ids for a probe of more than one chunk, which also starts LMCache's heartbeat in vLLM."""
        ids = await self.engine.tokenize(served.id, _PROBE_TEXT, add_special_tokens=False)
        token_count = min((facts.chunk_size if facts else 16) + 1, served.max_model_len - 1)
        return (ids * (token_count // len(ids) + 1))[:token_count]


def _attached(facts: KvTierFacts | None, served: ServedModel) -> AttachedModel | None:
    return next((a for a in facts.attached if a.root == served.root), None) if facts else None


def _text_digest(text: str | None) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS] if text else ""


def _choose(models: list[ServedModel], model_name: str | None) -> ServedModel:
    if not models:
        raise EngineResponseError("The engine serves no model.")
    if model_name is None:
        return models[0]
    for served in models:
        if served.id == model_name:
            return served
    raise InvalidParameterError(
        f"The engine does not serve the model '{model_name}'.",
        field="model",
        served=[served.id for served in models],
    )
