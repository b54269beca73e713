"""When keys were last used is known to a minute, and no request pays for it."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from cwm.adapters.sql.api_keys import SqlApiKeys
from cwm.adapters.sql.database import Database
from cwm.domain.access import EVERY
from cwm.domain.api_key import ApiKey, digest_of, written
from cwm.domain.errors import StorageWriteError, UnauthenticatedError
from cwm.services.access.authentication import Authentication
from cwm.services.access.key_uses import KeyUses
from tests.contracts.nouns import NOW
from tests.services.replicas_of import HandClock

SECRET = "s" * 43
KEY = ApiKey("acme", "00000000000000aa", "ci", EVERY, digest_of(SECRET), NOW)


class Gateway:
    def __init__(self, keys: SqlApiKeys) -> None:
        self.clock = HandClock()
        self.uses = KeyUses(keys)
        self.door = Authentication("acme", self.clock, keys=keys, uses=self.uses)

    async def opens(self, at: datetime, secret: str = SECRET) -> None:
        self.clock.seconds = at.timestamp()
        try:
            await self.door.authenticate({"authorization": f"Bearer {written(KEY.key_id, secret)}"})
        finally:
            await self.uses.aclose()


class Counted(SqlApiKeys):
    writes = 0

    async def note_use(self, tenant: str, key_id: str, at: datetime) -> None:
        self.writes += 1
        await super().note_use(tenant, key_id, at)


class ReadOnly(SqlApiKeys):
    async def note_use(self, tenant: str, key_id: str, at: datetime) -> None:
        raise StorageWriteError("The database is read-only.")


async def test_uses_within_a_minute_are_one_write_of_whichever_gateway(database: Database) -> None:
    keys = Counted(database)
    await keys.add(KEY)
    one, other = Gateway(keys), Gateway(keys)
    for gateway, seconds, last_used, writes in (
        (one, 0, 0, 1),
        (one, 59, 0, 1),
        (other, 59, 0, 1),
        (other, 60, 60, 2),
        (one, 61, 60, 2),
        (one, 3600, 3600, 3),
    ):
        await gateway.opens(NOW + timedelta(seconds=seconds))
        (key,) = await keys.listed("acme")
        assert key.last_used_at == NOW + timedelta(seconds=last_used)
        assert keys.writes == writes


async def test_a_wrong_secret_is_no_use(database: Database) -> None:
    keys = SqlApiKeys(database)
    await keys.add(KEY)
    with pytest.raises(UnauthenticatedError):
        await Gateway(keys).opens(NOW, "x" * 43)
    assert await keys.listed("acme") == [KEY]


async def test_a_key_opens_also_where_its_use_cannot_be_written(database: Database) -> None:
    keys = ReadOnly(database)
    await keys.add(KEY)
    await Gateway(keys).opens(NOW)
    assert await keys.listed("acme") == [KEY]
