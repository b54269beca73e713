"""Who may make and revoke the API keys of a tenant, and what a key may open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.sql.api_keys import SqlApiKeys
from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.sql.audit.trail import SqlAuditTrail
from cwm.adapters.sql.database import open_database
from cwm.domain.access import EVERY, OF_AN_AGENT, AccessScope
from cwm.domain.audit_chain import ChainKeys
from cwm.domain.errors import InsufficientScopeError, InvalidParameterError, StorageWriteError
from cwm.domain.principal import Principal
from cwm.services.access.authentication import Authentication
from cwm.services.access.machine_keys import MachineKeys
from cwm.services.access.tenant_keys import TenantKeys

READ = frozenset({AccessScope.WINDOWS_READ})
ROOT = Principal("acme", "root", EVERY, workspaces=frozenset({"red"}))
READER = Principal("acme", "reader", EVERY | {AccessScope.OTHERS_READ})
EVE = Principal("evil", "eve", EVERY)
CHAIN = ChainKeys([b"a secret"])


class House:
    def __init__(self, url: str) -> None:
        self.database = open_database(url)
        machines = MachineKeys(SqlApiKeys(self.database), SqlAuditLog(self.database, CHAIN), SystemClock())
        self.keys = TenantKeys(machines, accepted=True)
        self.closed = TenantKeys(machines, accepted=False)
        self.door = Authentication("acme", SystemClock(), keys=machines.keys)

    async def make(self, who: Principal = ROOT, name: str = "ci", scopes: Any = READ, **given: Any) -> Any:
        return await self.keys.create(who, name, scopes, timedelta(days=1), **given)

    async def events(self, tenant: str = "acme") -> list[tuple[str, str, str]]:
        records = await SqlAuditTrail(self.database, CHAIN).newest(tenant, 10)
        return [(each.event.event, each.event.subject, each.event.details["name"]) for each in records][::-1]


@pytest.fixture
async def house(sqlite_url: str) -> AsyncIterator[House]:
    house = House(sqlite_url)
    yield house
    await house.database.dispose()


async def test_a_key_opens_until_it_is_revoked_and_the_log_names_who_did_both(house: House) -> None:
    key, text = await house.make(workspaces=frozenset({"red"}))
    headers = {"authorization": f"Bearer {text}"}
    machine = await house.door.authenticate(headers)
    assert (machine.tenant, machine.subject, machine.scopes) == ("acme", "key:ci", READ)
    assert machine.workspaces == {"red"}
    assert await house.keys.listed(ROOT) == [key]
    await house.keys.revoke(ROOT, key.key_id)
    with pytest.raises(Exception, match="revoked"):
        await house.door.authenticate(headers)
    assert await house.events() == [("key.create", "root", "ci"), ("key.revoke", "root", "ci")]


async def test_without_admin_keys_are_neither_seen_nor_made_nor_revoked(house: House) -> None:
    key, _ = await house.make()
    agent = Principal("acme", "agent", OF_AN_AGENT)
    for attempt in (house.keys.listed(agent), house.make(agent), house.keys.revoke(agent, key.key_id)):
        with pytest.raises(InsufficientScopeError):
            await attempt
    assert [each.revoked_at for each in await house.keys.listed(ROOT)] == [None]


async def test_another_tenants_keys_are_as_if_there_were_none(house: House) -> None:
    key, _ = await house.make()
    assert await house.keys.listed(EVE) == []
    for key_id in (key.key_id, "0" * 16):
        with pytest.raises(InvalidParameterError, match=f"There is no key {key_id} in this tenant"):
            await house.keys.revoke(EVE, key_id)
    assert await house.events("evil") == []


async def test_a_key_opens_no_more_than_its_creator_may_do(house: House) -> None:
    for refused in (
        house.make(scopes=frozenset({AccessScope.OTHERS_READ})),
        house.make(workspaces=frozenset({"red", "blue"})),
        house.make(Principal("acme", "a", frozenset({AccessScope.ADMIN})), scopes=READ),
    ):
        with pytest.raises(InsufficientScopeError):
            await refused
    assert await house.keys.listed(ROOT) == []
    await house.make(READER, workspaces=frozenset({"blue"}), scopes=frozenset({AccessScope.OTHERS_READ}))


async def test_another_machines_name_is_for_who_may_read_what_it_has(house: House) -> None:
    first, _ = await house.make()
    await house.keys.revoke(ROOT, first.key_id)
    with pytest.raises(InsufficientScopeError, match="Another key has this name"):
        await house.make()
    await house.make(READER)
    await house.make(Principal("acme", "key:ci", EVERY))
    await house.make(EVE)
    assert len(await house.keys.listed(ROOT)) == 3


async def test_an_id_that_was_chosen_before_makes_one_key(house: House) -> None:
    await house.make(key_id="00000000000000aa")
    with pytest.raises(StorageWriteError):
        await house.make(READER, key_id="00000000000000aa")
    assert [each.key_id for each in await house.keys.listed(ROOT)] == ["00000000000000aa"]


async def test_where_no_keys_are_taken_none_is_made_but_one_can_be_revoked(house: House) -> None:
    key, _ = await house.make()
    with pytest.raises(InvalidParameterError, match="CWM_API_KEYS is false"):
        await house.closed.create(ROOT, "other", READ, None)
    assert (await house.closed.revoke(ROOT, key.key_id)).revoked_at is not None
