"""Counts of requests and tokens that several gateways share."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from cwm.adapters.limits.counts import LimitsRequestCounts
from cwm.adapters.redis.connection import told_as
from cwm.adapters.redis.keys import digest_key
from cwm.domain.errors import StorageWriteError

if TYPE_CHECKING:
    import redis.asyncio as redis

    from cwm.adapters.redis.limits.trips import Trips


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


def _writing() -> AbstractAsyncContextManager[None]:
    return told_as(StorageWriteError, "The counts of requests cannot be written; try again soon.")
