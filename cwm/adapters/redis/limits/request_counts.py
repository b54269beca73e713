"""Counts of requests and tokens that several gateways share."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cwm.adapters.limits.counts import LimitsRequestCounts
from cwm.adapters.redis import connection
from cwm.adapters.redis.keys import digest_key

if TYPE_CHECKING:
    import redis.asyncio as redis

    from cwm.adapters.redis.limits.trips import Trips

_writing: Final = partial(connection.writing, "The counts of requests")


def redis_request_counts(client: redis.Redis, trips: Trips) -> LimitsRequestCounts:
    """Counts a request against all its limits in one script, so that it counts once across replicas.

    ``client`` must not retry: a script whose response was lost may have counted.
    """

    def storage() -> Any:
        from cwm.adapters.redis.limits.limit_storage import LimitStorage

        return LimitStorage(
            trips,
            "redis://",
            implementation="redispy",
            key_prefix=digest_key("limit"),
            connection_pool=client.connection_pool,
        )

    return LimitsRequestCounts(storage, _writing)
