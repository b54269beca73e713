"""Makes LMCache store again below L1 what it has there: ``POST /cache/prefetches`` from tier ``l1`` to ``l2``.

Stock LMCache writes a chunk to the tiers below L1 once, when it enters L1. What one of them refuses, as a full Valkey does, never
reaches it: a chunk that L1 or another tier has is not taken from the engine again.
"""

from __future__ import annotations

from typing import Any

from lmcache.v1.distributed.api import Tier
from lmcache.v1.multiprocess.cache_control.prefetch_service import PrefetchService


class _Stores:
    """In place of LMCache's table of prefetches: hands the keys to those that store, as if L1 had just got them.

    Keys that L1 does not have are skipped there.
    """

    def submit(self, storage_manager: Any, key_groups: Any) -> str:
        keys = [key for group in key_groups for key in group.keys]
        for controller in storage_manager._store_controllers.values():  # noqa: SLF001 - it has no public face
            controller._listener.on_l1_keys_write_finished(keys)  # noqa: SLF001
        return ""


def take_refills() -> None:
    """Let a prefetch go down as well. Call it before LMCache starts."""
    submit = PrefetchService.submit

    def submit_either_way(
        service: PrefetchService,
        model_name: str,
        world_size: int,
        token_ids: list[int],
        cache_salt: str,
        source_tier: Tier,
        target_tier: Tier,
    ) -> dict[str, object]:
        if (source_tier, target_tier) == (Tier.L1, Tier.L2):
            service = PrefetchService(service._engine)  # noqa: SLF001 - the rest is as for a load
            service._jobs = _Stores()  # noqa: SLF001
            source_tier, target_tier = Tier.L2, Tier.L1
        return submit(service, model_name, world_size, token_ids, cache_salt, source_tier, target_tier)

    PrefetchService.submit = submit_either_way
