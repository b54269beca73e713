"""What every keeper of API keys owes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from cwm.adapters.sql.api_keys import SqlApiKeys
from cwm.adapters.sql.database import Database
from cwm.domain.access import AccessScope
from cwm.domain.api_key import ApiKey, digest_of
from cwm.domain.errors import StorageWriteError
from tests.contracts.nouns import LATER, NOW

ONE = ApiKey(
    "acme",
    "00000000000000aa",
    "ci",
    frozenset({AccessScope.WINDOWS_READ}),
    digest_of("s"),
    NOW,
    expires_at=LATER,
)


@pytest.fixture
def keys(database: Database) -> SqlApiKeys:
    return SqlApiKeys(database)


async def test_a_key_comes_back_as_it_was_added(keys: SqlApiKeys) -> None:
    forever = ApiKey("acme", "00000000000000bb", "ci", frozenset(AccessScope), digest_of("t"), LATER)
    await keys.add(ONE)
    await keys.add(forever)
    assert await keys.find_of_every_tenant(ONE.key_id) == ONE
    assert await keys.find_of_every_tenant(forever.key_id) == forever
    assert await keys.find_of_every_tenant("00000000000000cc") is None
    assert await keys.listed("acme") == [forever, ONE]


async def test_another_tenants_keys_are_neither_listed_nor_revoked(keys: SqlApiKeys) -> None:
    await keys.add(ONE)
    assert await keys.listed("other") == []
    assert await keys.revoke("other", ONE.key_id, LATER) is None
    assert await keys.find_of_every_tenant(ONE.key_id) == ONE


async def test_a_revoked_key_says_when_it_was_first_revoked(keys: SqlApiKeys) -> None:
    await keys.add(ONE)
    revoked = await keys.revoke("acme", ONE.key_id, NOW)
    assert revoked is not None
    assert revoked.revoked_at == NOW
    assert not revoked.is_good(NOW)
    assert await keys.revoke("acme", ONE.key_id, LATER) == revoked
    assert await keys.find_of_every_tenant(ONE.key_id) == revoked
    assert await keys.revoke("acme", "00000000000000cc", NOW) is None


async def test_a_key_keeps_its_latest_use(keys: SqlApiKeys) -> None:
    await keys.add(ONE)
    for tenant, key_id, at in (
        ("acme", ONE.key_id, LATER),
        ("acme", ONE.key_id, NOW),
        ("other", ONE.key_id, LATER + timedelta(days=1)),
        ("acme", "00000000000000cc", NOW),
    ):
        await keys.note_use(tenant, key_id, at)
    assert await keys.listed("acme") == [replace(ONE, last_used_at=LATER)]


async def test_an_id_is_given_once_whatever_the_tenant(keys: SqlApiKeys) -> None:
    await keys.add(ONE)
    with pytest.raises(StorageWriteError):
        await keys.add(ApiKey("other", ONE.key_id, "ci", ONE.scopes, ONE.digest, NOW))
