"""What an engine is: the facts a stored chunk depends on and does not carry itself."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


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
    ``hash_algorithm`` are None for an engine without LMCache. Sizes are in tokens.
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

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def derive_cache_salt(secret: bytes, scope: str, identity: EngineIdentity) -> str:
    """The salt mixed into every chunk hash: 45 characters of ``[a-z0-9-]``.

    LMCache's keys name neither weights, nor dtype, nor block size; a salt derived from what the
    engine is makes KV of a changed engine a miss instead of garbage.
    """
    facts = "\x1f".join(
        (
            scope,
            identity.root,
            identity.fingerprint,
            str(identity.chunk_size),
            str(identity.hash_algorithm),
            identity.weights_digest,
        )
    )
    mac = hmac.new(secret, facts.encode(), hashlib.sha256).hexdigest()
    return f"cwm1-{mac[:40]}"
