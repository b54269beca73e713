"""Whose sessions are limited without a word on it in the settings, and how the store that counts them is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.local.identity import LocalIdentity
from cwm.adapters.redis.connection import connect
from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.domain.errors import RateLimitError
from cwm.domain.limits import LimitRules, Rate
from cwm.domain.principal import Principal
from cwm.ports.audit import AuditLog
from cwm.ports.identity import Identity
from cwm.settings import Auth, Database, Http, Isolation, Limits, Settings, Shared
from cwm.wiring.limits import build_limits
from cwm.wiring.parts import build_parts
from tests.lost_answers import losing_one_answer

OPEN = LimitRules(streams_principal=500)
SEED = LimitRules(session=(Rate(60, 60), Rate(1_000, 3_600)), streams_principal=500)
KNOWN = replace(
    SEED,
    principal=(Rate(600, 60), Rate(10_000, 3_600)),
    lists=(Rate(600, 60),),
    running_principal=16,
    running_tenant=64,
    stored_principal=4 * 2**30,
    stored_tenant=32 * 2**30,
)


class Known:
    """Callers who have shown who they are."""

    async def authenticate(self, headers: Mapping[str, str]) -> Principal:
        return Principal("acme", headers["who"])


def rules(settings: Settings, identity: Identity) -> LimitRules:
    unused = cast("AuditLog", None)
    return build_limits(settings, None, identity, unused, PrometheusMeter(), SystemClock()).rules


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_who_has_a_gateway_to_themselves_is_not_limited_and_who_shows_who_they_are_is(host: str) -> None:
    settings = Settings(http=Http(host=host))
    assert rules(settings, LocalIdentity("default")) == OPEN
    assert rules(settings, Known()) == KNOWN


def test_a_gateway_that_others_reach_limits_their_sessions_and_not_all_who_are_nobody_together() -> None:
    settings = Settings(http=Http(host="0.0.0.0", allow_unauthenticated=True))
    assert rules(settings, LocalIdentity("default")) == SEED


async def test_who_makes_up_a_session_for_each_call_is_refused_as_a_user_and_nobody_else_is(
    tmp_path: Path,
) -> None:
    settings = Settings(
        database=Database(db_path=tmp_path / "cwm.db"),
        isolation=Isolation(secret="a test's secret"),
        auth=Auth(api_keys=True),
    )
    parts = build_parts(settings)
    async with parts.close():
        for made_up in range(600):
            (await parts.base.limits.admit(Principal("acme", "ann"), f"session {made_up}"))()
            await parts.base.limits.settle()
        with pytest.raises(RateLimitError) as refused:
            await parts.base.limits.admit(Principal("acme", "ann"), "one more")
        await parts.base.limits.admit(Principal("acme", "bob"), "session 1")
    assert refused.value.context["level"] == "principal"


def test_what_is_set_holds_for_everybody() -> None:
    settings = Settings(
        limits=Limits(
            rate_limit_session="none",
            rate_limit_principal="7/hour",
            rate_limit_lists="none",
            concurrent_principal=0,
            concurrent_tenant=9,
            streams_principal=0,
            stored_principal_gb=0,
            stored_tenant_gb=0,
        )
    )
    for identity in (LocalIdentity("default"), Known()):
        assert rules(settings, identity) == LimitRules(principal=(Rate(7, 3_600),), running_tenant=9)


@pytest.mark.slow
async def test_a_request_is_counted_once_also_when_the_stores_answer_is_lost(
    redis_url: str, tmp_path: Path
) -> None:
    async with losing_one_answer(redis_url, b"cwm:limit") as url:
        settings = Settings(
            database=Database(db_path=tmp_path / "cwm.db"),
            isolation=Isolation(secret="a test's secret"),
            shared=Shared(shared_store_url=url),
            limits=Limits(rate_limit_session="10/hour"),
        )
        parts = build_parts(settings)
        async with parts.close():
            await parts.base.limits.admit(Principal("acme", "ann"), "a")
    client = connect(redis_url)
    counted = [await client.get(key) async for key in client.scan_iter("*cwm:limit*")]
    await client.aclose()
    assert counted == ["1"]
