"""The digest of a deployment: everything that the KV of an engine depends on."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from blake3 import blake3

# vLLM's own groups of options, each with a hash of those that change what is computed. Others (scheduling, logging,
# compilation) change how fast.
_GROUPS = (
    "model_config",
    "cache_config",
    "parallel_config",
    "attention_config",
    "quant_config",
    "lora_config",
    "speculative_config",
)


def deployment_digest(vllm_config: Any, weights: str | None) -> str | None:
    """``kv-`` and 32 hex digits, over the weights' digest, the versions of vLLM and LMCache, and vLLM's options that KV depends on.

    Engines with the same digest may use each other's KV. None if the weights have no digest, or vLLM cannot tell its options.
    """
    if weights is None:
        return None
    try:
        facts = [weights, *(f"{name} {_version(name)}" for name in ("vllm", "lmcache"))]
        facts += [f"{group} {_options(getattr(vllm_config, group, None))}" for group in _GROUPS]
        facts.append(f"dtype {vllm_config.model_config.dtype} block {vllm_config.cache_config.block_size}")
    except (AttributeError, TypeError, ValueError) as error:
        print(f"CWM: the deployment has no digest: {error}", flush=True)
        return None
    return "kv-" + str(blake3("\x1f".join(facts).encode()).hexdigest(length=16))


def _options(group: Any) -> str:
    if group is None:
        return ""
    return str(group.compute_hash()) if hasattr(group, "compute_hash") else type(group).__name__


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
