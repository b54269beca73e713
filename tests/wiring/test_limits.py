"""Whose sessions are limited without a word on it in the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.local.identity import LocalIdentity
from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.domain.limits import LimitRules, Rate
from cwm.domain.principal import Principal
from cwm.ports.audit import AuditLog
from cwm.ports.identity import Identity
from cwm.settings import Http, Limits, Settings
from cwm.wiring.limits import build_limits

SEED = LimitRules(session=(Rate(60, 60), Rate(1_000, 3_600)))


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
    assert rules(settings, LocalIdentity("default")) == LimitRules()
    assert rules(settings, Known()) == SEED


def test_a_gateway_that_others_reach_limits_their_sessions() -> None:
    settings = Settings(http=Http(host="0.0.0.0", allow_unauthenticated=True))
    assert rules(settings, LocalIdentity("default")) == SEED


def test_what_is_set_holds_for_everybody() -> None:
    settings = Settings(limits=Limits(rate_limit_session="none", rate_limit_principal="7/hour"))
    for identity in (LocalIdentity("default"), Known()):
        assert rules(settings, identity) == LimitRules(principal=(Rate(7, 3_600),))
