"""What an engine is: the facts that stored chunks depend on but do not carry themselves."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, Self

from cwm.domain.errors import InvalidParameterError


class Tier(StrEnum):
    """Where chunks are: LMCache's L1, its file adapter or its Redis adapter."""

    CPU = "cpu"
    DISK = "disk"
    REDIS = "redis"


class CacheScope(StrEnum):
    """Who may share KV: a whole tenant, or one lineage of sessions and windows."""

    TENANT = "tenant"
    SESSION = "session"


_LARGEST_DEFAULT_BLOCK: Final = 128
# How the digests of deploy/engine/cwm_engine/deployment.py begin.
_DEPLOYMENT: Final = "kv-"
_BY_NAME: Final = "deployment:"
_NOBODY: Final = "kv-of-nobody"


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """One model served by one engine, as far as its KV depends on it.

    ``root`` is the model path that vLLM loaded; LMCache calls it model_name. ``chunk_size`` and ``hash_algorithm``
    are None for an engine without LMCache. Of a LoRA adapter ``root`` is that of its base, under which LMCache stores its KV, and ``adapter`` what vLLM loaded it from. Sizes are in tokens. ``fingerprint`` is the digest of its deployment, where it has
    CWM's connector, else vLLM's own, which covers more options than KV depends on. Facts that the engine does not report are None
    or empty. ``engine`` is its name in the directory, which equal engines do not share. ``no_reuse`` is a sentence that says why this engine neither stores
    nor loads KV, empty where it does; its KV depends on neither.
    """

    model: str
    root: str
    fingerprint: str
    max_model_len: int
    vllm_version: str
    chunk_size: int | None = None
    block_size: int | None = None
    hash_algorithm: str | None = None
    world_size: int = 1
    lmcache_version: str | None = None
    weights_digest: str = ""
    kv_dtype: str | None = None
    tokenizer_digest: str = ""
    template_digest: str = ""
    adapter: str = ""
    engine: str = field(default="", compare=False)
    no_reuse: str = field(default="", compare=False)

    def require_room(self, prompt_tokens: int | None) -> None:
        """Refuse a prompt that does not fit, CWM-1003: the engine would shorten the answer silently. None: its length is not known."""
        if prompt_tokens is not None and prompt_tokens + 1 > self.max_model_len:
            raise InvalidParameterError(
                f"The prompt has {prompt_tokens} tokens; '{self.model}' takes {self.max_model_len}, "
                "at least one of the answer included.",
                field="prompt",
                token_count=prompt_tokens,
                max_model_len=self.max_model_len,
            )

    @property
    def stored_chunk(self) -> int | None:
        """The tokens of a chunk in which KV is stored; None where nothing is stored: without LMCache, or where no KV is reused."""
        return None if self.no_reuse else self.chunk_size

    @property
    def is_by_name(self) -> bool:
        """Whether the installation names its deployment, which it does not report."""
        return self.fingerprint.startswith(_BY_NAME)

    @property
    def reused_block(self) -> int:
        """The tokens of the largest block that KV is reused in; of an engine that does not say, vLLM's default on a CPU."""
        return max(self.chunk_size or 0, self.block_size or 0) or _LARGEST_DEFAULT_BLOCK

    @property
    def expected(self) -> str:
        """The digest that a request for this engine's KV names: an engine of another deployment does not use it then.

        That of nobody where no KV is reused: CWM's connector then neither loads nor stores.
        """
        if self.no_reuse:
            return _NOBODY
        return self.fingerprint if self.fingerprint.startswith(_DEPLOYMENT) else self.weights_digest

    def as_dict(self) -> dict[str, Any]:
        """The facts, without the engine's name: what is kept of them is true of every equal engine.

        Without an empty ``adapter`` or ``no_reuse``, too: gateways from before there was one read what is kept.
        """
        left_out = {"engine", *(name for name in ("adapter", "no_reuse") if not getattr(self, name))}
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What :meth:`as_dict` gave, also that of a later version, whose other facts are left out."""
        return cls(**{name: value for name, value in values.items() if name in cls.__slots__})


def deployment_by_name(name: str) -> str:
    """What stands for fingerprint and weights of an engine whose deployment the installation names."""
    return f"{_BY_NAME}{name}"


KV_FIELDS: Final = (
    "root",
    "fingerprint",
    "weights_digest",
    "vllm_version",
    "lmcache_version",
    "kv_dtype",
    "block_size",
    "chunk_size",
    "hash_algorithm",
    "world_size",
    "adapter",
)
"""What stored KV depends on: engines that differ in any of these never share KV."""

TOKEN_FIELDS: Final = ("tokenizer_digest", "template_digest")
"""What token ids mean: engines that differ here read the same ids, or render the next turn, differently."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One field in which an engine changed between ``then`` and ``now``."""

    field: str
    then: str
    now: str

    @property
    def changes_tokens(self) -> bool:
        return self.field in TOKEN_FIELDS

    def __str__(self) -> str:
        return f"{self.field} was {self.then}, is {self.now}"


def differences(then: EngineIdentity, now: EngineIdentity) -> tuple[Difference, ...]:
    """Every relevant field that differs, those that change tokens first.

    A token digest that one side does not know is not a difference: there is nothing to compare. The digest of a deployment is one
    only where nothing else is: it follows from all of them.
    """
    compared = {field: (getattr(then, field), getattr(now, field)) for field in (*TOKEN_FIELDS, *KV_FIELDS)}
    by_field = {
        field: Difference(field, _text(before), _text(after))
        for field, (before, after) in compared.items()
        if before != after and (field in KV_FIELDS or (before and after))
    }
    if now.fingerprint.startswith(_DEPLOYMENT) and any(
        field in KV_FIELDS for field in by_field.keys() - {"fingerprint"}
    ):
        by_field.pop("fingerprint", None)
    return tuple(by_field.values())


def _text(value: object) -> str:
    return "unknown" if value in {None, ""} else str(value)


def engine_key(identity: EngineIdentity) -> str:
    """A key for everything that an engine's KV depends on: 64 characters, the same for equal engines."""
    facts = "\x1f".join(_kv_facts(identity))
    return hashlib.sha256(facts.encode()).hexdigest()


def _kv_facts(identity: EngineIdentity) -> list[str]:
    """A model without an adapter has the facts that it had before there were adapters: its salts stay."""
    fields = KV_FIELDS if identity.adapter else [name for name in KV_FIELDS if name != "adapter"]
    return [str(getattr(identity, name)) for name in fields]


def derive_cache_salt(secret: bytes, scope: str, identity: EngineIdentity) -> str:
    """The salt mixed into every chunk hash: 45 characters of ``[a-z0-9-]``.

    LMCache's keys do not include weights, dtype or block size. A salt derived from these facts makes KV of a
    changed engine a miss instead of garbage.
    """
    facts = "\x1f".join((scope, *_kv_facts(identity)))
    mac = hmac.new(secret, facts.encode(), hashlib.sha256).hexdigest()
    return f"cwm1-{mac[:40]}"
