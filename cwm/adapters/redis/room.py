"""How much room a Redis or Valkey has, and what it does when it is full."""

from __future__ import annotations

from redis.exceptions import RedisError

from cwm.adapters import certificates
from cwm.adapters.redis.connection import connect
from cwm.domain.errors import EngineConnectionError
from cwm.ports.kv_tier import SharedTierRoom


async def shared_tier_room(url: str) -> SharedTierRoom:
    """What ``INFO memory`` tells. CWM-5001 when it does not answer."""
    client = connect(url)
    try:
        told = await client.info("memory")
    except (RedisError, OSError) as error:
        how = certificates.fault(error) or "does not answer"
        raise EngineConnectionError(f"The Redis of CWM_REDIS_URL {how}.") from error
    finally:
        await client.aclose()
    return SharedTierRoom(
        policy=told.get("maxmemory_policy"),
        used_bytes=int(told.get("used_memory", 0)),
        max_bytes=int(told.get("maxmemory", 0)) or None,
    )
