"""What a prefetch that has ended is taken to say of where its chunks came from."""

from __future__ import annotations

from typing import Any

import pytest

from cwm.adapters.lmcache.client import _prefetched
from cwm.domain.engine import Tier
from cwm.ports.kv_tier import Prefetched


@pytest.mark.parametrize(
    ("told", "loaded"),
    [
        ({}, None),
        ({"cwm_loaded": {}}, {}),
        ({"cwm_loaded": {"valkey": 4, "fs_native": 2}}, {Tier.REDIS: 2, Tier.DISK: 1}),
        ({"cwm_loaded": {"valkey": 4, "s3": 2}}, None),
    ],
)
def test_of_an_adapter_that_is_not_known_no_tier_is_told(
    told: dict[str, Any], loaded: dict[Tier, int] | None
) -> None:
    keys = {"found_keys": 6, "total_keys": 6}
    assert _prefetched({**keys, **told}, 3) == Prefetched(3, 3, loaded)
