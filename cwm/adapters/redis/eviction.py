"""What a Redis or Valkey does when it is full."""

from __future__ import annotations

from typing import Final

import redis.asyncio as redis
from redis.exceptions import RedisError, ResponseError

from cwm.domain.errors import EngineConnectionError

_PATIENCE_SECONDS: Final = 3.0


async def eviction_policy(url: str) -> str | None:
    """Its maxmemory-policy; None where it does not tell. CWM-5001 when it does not answer."""
    client = redis.Redis.from_url(
        url, socket_connect_timeout=_PATIENCE_SECONDS, socket_timeout=_PATIENCE_SECONDS
    )
    try:
        answer = await client.config_get("maxmemory-policy")
    except ResponseError:  # a managed Redis keeps CONFIG to itself
        return None
    except (RedisError, OSError) as error:
        raise EngineConnectionError("The Redis of CWM_REDIS_URL does not answer.") from error
    finally:
        await client.aclose()
    policy = answer.get("maxmemory-policy")
    return policy.decode() if isinstance(policy, bytes) else policy
