from __future__ import annotations

import pytest

from cwm.adapters.redis.room import shared_tier_room


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
async def test_a_redis_tells_its_room_by_whichever_scheme_the_settings_take(
    redis_url: str, scheme: str
) -> None:
    room = await shared_tier_room(f"{scheme}:{redis_url.partition(':')[2]}")

    assert room.policy == "noeviction"
    assert room.used_bytes > 0
    assert room.max_bytes is None
