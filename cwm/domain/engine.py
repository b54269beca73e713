"""What an engine is: the facts a stored chunk depends on and does not carry itself."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final


class Tier(StrEnum):
    """Where chunks are: LMCache's L1, its file adapter, its Redis adapter."""

    CPU = "cpu"
    DISK = "disk"
    REDIS = "redis"


class CacheScope(StrEnum):
    """Who may share KV: everything of a tenant, or one lineage of sessions and windows."""

    TENANT = "tenant"
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """One served model on one engine, as far as its KV depends on it.

    ``root`` is the model path vLLM loaded, which LMCache calls model_name. ``chunk_size`` and
    ``hash_algorithm`` are None for an engine without LMCache. Sizes are in tokens. What the engine does not
    tell is None or empty; its ``fingerprint`` covers its whole configuration all the same.
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

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


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
)
"""What stored KV depends on: engines that differ in one of these never share it."""

TOKEN_FIELDS: Final = ("tokenizer_digest", "template_digest")
"""What token ids mean: engines that differ in one of these read the same ids, or the next turn, otherwise."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One field in which the engine of now is not the engine of then."""

    field: str
    then: str
    now: str

    @property
    def changes_tokens(self) -> bool:
        return self.field in TOKEN_FIELDS

    def __str__(self) -> str:
        return f"{self.field} was {self.then}, is {self.now}"


def differences(then: EngineIdentity, now: EngineIdentity) -> tuple[Difference, ...]:
    """Every field that matters and differs, those that change tokens first.

    A digest of tokens that one side does not know is no difference: there is nothing to compare.
    """
    compared = {field: (getattr(then, field), getattr(now, field)) for field in (*TOKEN_FIELDS, *KV_FIELDS)}
    return tuple(
        Difference(field, _told(before), _told(after))
        for field, (before, after) in compared.items()
        if before != after and (field in KV_FIELDS or (before and after))
    )


def _told(value: object) -> str:
    return "unknown" if value in {None, ""} else str(value)


def engine_key(identity: EngineIdentity) -> str:
    """Names an engine by all that its KV depends on: 64 characters, the same for equal engines."""
    facts = "\x1f".join(str(getattr(identity, field)) for field in KV_FIELDS)
    return hashlib.sha256(facts.encode()).hexdigest()


def derive_cache_salt(secret: bytes, scope: str, identity: EngineIdentity) -> str:
    """The salt mixed into every chunk hash: 45 characters of ``[a-z0-9-]``.

    LMCache's keys name neither weights, nor dtype, nor block size; a salt derived from what the
    engine is makes KV of a changed engine a miss instead of garbage.
    """
    facts = "\x1f".join((scope, *(str(getattr(identity, field)) for field in KV_FIELDS)))
    mac = hmac.new(secret, facts.encode(), hashlib.sha256).hexdigest()
    return f"cwm1-{mac[:40]}"
