"""The doctor of a running gateway: it examines with the gateway's own connections."""

from __future__ import annotations

from cwm.adapters.sql import schema
from cwm.adapters.sql.clock import time_of
from cwm.adapters.sql.schema_error import SchemaError
from cwm.ports.kv_tier import SharedTierRoom
from cwm.services.health.doctor import Doctor
from cwm.settings import Settings
from cwm.wiring.engine_side import EngineSide
from cwm.wiring.foundation import Foundation


def build_doctor(settings: Settings, base: Foundation, engine_side: EngineSide) -> Doctor:
    redis_url = settings.storage.redis_url

    async def fits() -> tuple[bool, str]:
        try:
            await schema.require_current(base.database)
        except SchemaError as error:
            return False, str(error)
        return True, f"reachable, schema {schema.REVISIONS[-1]}"

    async def room() -> SharedTierRoom:
        # Imported on use: a gateway without Redis does not need its client.
        from cwm.adapters.redis.room import shared_tier_room

        return await shared_tier_room("" if redis_url is None else redis_url.get_secret_value())

    return Doctor(
        base.registry,
        engine_side.engine,
        engine_side.kv_tier,
        base.clock,
        fits,
        lambda: time_of(base.database),
        room if redis_url else None,
        settings.engine.weights_digest,
        {name: entry.rules for name, entry in engine_side.engine_list.entries().items()}
        if settings.engines
        else None,
    )
