"""The memory limit and the eviction policy of a Redis or Valkey."""

from __future__ import annotations

from redis.exceptions import RedisError

from cwm.adapters import certificates
from cwm.adapters.redis.connection import connect
from cwm.domain.errors import EngineConnectionError
from cwm.ports.kv_tier import SharedTierRoom


async def shared_tier_room(url: str) -> SharedTierRoom:
    """The figures of ``INFO memory``. Raises CWM-5001 if Redis does not answer."""
    client = connect(url)
    try:
        info = await client.info("memory")
    except (RedisError, OSError) as error:
        how = certificates.fault(error) or "does not answer"
        raise EngineConnectionError(f"The Redis of CWM_REDIS_URL {how}.") from error
    finally:
        await client.aclose()
    return SharedTierRoom(
        policy=info.get("maxmemory_policy"),
        used_bytes=int(info.get("used_memory", 0)),
        max_bytes=int(info.get("maxmemory", 0)) or None,
    )
