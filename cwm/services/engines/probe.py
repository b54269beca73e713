"""Asks an engine who it is: the identity of a model on it, from what the engine and its LMCache say and from a probe."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from uuid import uuid4

from cwm.domain.engine import EngineIdentity, deployment_by_name
from cwm.domain.errors import EngineConnectionError, EngineResponseError
from cwm.domain.pooling import POOLING_PATHS, does_not_generate
from cwm.domain.prefix import TokenIds, digest
from cwm.domain.thinking import switches_of
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
_COMPLETIONS: Final = "/v1/completions"
_START: Final = "start:"


@dataclass(slots=True, eq=False, repr=False)
class Probe:
    """``weights_digest`` names the weights of an engine that does not report a digest of its own."""

    engine: Engine
    kv_tier: KvTier
    weights_digest: str
    _hardened: set[str] = field(default_factory=set)
    """The weights of engines that have CWM's connector."""
    _pooled: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    """Models that were asked to generate and do not, by the names of engine and model: the paths of their engine's API."""
    _facts: dict[str, KvTierFacts] = field(default_factory=dict)
    _switches: dict[str, frozenset[str]] = field(default_factory=dict)
    """By the digests of templates."""

    async def identity(self, name: str, served: ServedModel, deployment: Callable[[], str]) -> EngineIdentity:
        """The identity of a model on an engine; ``deployment`` is asked after the probe, for an engine that reports no digest.

        CWM-1003 if the model does not generate.
        """
        if paths := self._pooled.get((name, served.id)):
            raise does_not_generate(served.id, paths)
        engine, facts = self.engine.on(name), await self._facts_now(name)
        probe = await _probe_ids(engine, served, facts)
        salt = f"{_PROBE_SALT}-{_text_digest(served.adapter)}" if served.adapter else _PROBE_SALT
        answer = await self._first_answer(
            engine, Generation(served.id, probe, salt, max_tokens=1, engine=name)
        )
        attached = _told(facts, served, answer) or _attached(facts, served)
        if facts is not None and attached is None:
            # LMCache lists the model only after the probe has stored something.
            facts = await self._facts_now(name) or facts
            attached = _attached(facts, served)
        weights, fingerprint = await self._weights(engine, answer, facts), answer.fingerprint or ""
        if not answer.weights and (deployment_name := deployment()):
            weights = fingerprint = deployment_by_name(deployment_name)
        template = await engine.chat_template(served.id)
        self._switches[_text_digest(template)] = switches_of(template)
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
            template_digest=_text_digest(template),
            adapter=served.adapter,
            engine=name,
            no_reuse=answer.no_reuse if facts else "",
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

    def switches(self, identity: EngineIdentity) -> frozenset[str]:
        """The variables for thoughts that the template of a model reads."""
        return self._switches.get(identity.template_digest, frozenset())

    def survives_aborts(self, identity: EngineIdentity) -> bool:
        """Whether the engine has CWM's connector, so that a request may be aborted while its KV is being loaded."""
        return identity.weights_digest in self._hardened

    def is_pooled(self, engine: str, model: str) -> bool:
        """Whether a model was asked to generate and is for something else."""
        return (engine, model) in self._pooled

    def forget(self, engine: str = "") -> None:
        """Forget what is known of one engine's models, or of all."""
        self._pooled = {key: paths for key, paths in self._pooled.items() if engine not in {"", key[0]}}

    async def without_cache(self, engine: str) -> bool:
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


async def _probe_ids(engine: Engine, served: ServedModel, facts: KvTierFacts | None) -> TokenIds:
    """Token ids for a probe of more than one chunk, which also starts LMCache's heartbeat in vLLM."""
    ids = await engine.tokenize(served.id, _PROBE_TEXT, add_special_tokens=False)
    token_count = min((facts.chunk_size if facts else 16) + 1, served.max_model_len - 1)
    return (ids * (token_count // len(ids) + 1))[:token_count]


def _told(facts: KvTierFacts | None, served: ServedModel, answer: Completion) -> AttachedModel | None:
    """What an engine says of itself that never attaches to LMCache, because no KV is reused there."""
    if facts is None or answer.block_size is None:
        return None
    return AttachedModel(served.root, answer.world_size or 1, answer.block_size)


def _attached(facts: KvTierFacts | None, served: ServedModel) -> AttachedModel | None:
    return next((a for a in facts.attached if a.root == served.root), None) if facts else None


def _text_digest(text: str | None) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS] if text else ""
