"""How limits are set, and for whom there are some without a word on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cwm.domain.limits import LimitRules, Rate, ToolRates
from cwm.settings import Limits, SettingsError
from cwm.settings.load import settings_from

FILE = Path("cwm.yaml")
SEED = (Rate(60, 60), Rate(1_000, 3_600))
TEN_SESSIONS = (Rate(600, 60), Rate(10_000, 3_600))


def rules(environ: dict[str, str], *, others: bool, known: bool = False) -> LimitRules:
    limits = settings_from(b"", environ, FILE).limits
    return limits.rules(shared_with_others=others, users_known=known)


def test_by_default_a_session_is_limited_where_others_ask_and_open_streams_everywhere() -> None:
    assert rules({}, others=True) == LimitRules(session=SEED, streams_principal=500)
    assert rules({}, others=False) == LimitRules(streams_principal=500)


def test_by_default_a_user_who_is_known_has_what_ten_sessions_have_however_many_there_are() -> None:
    known = LimitRules(
        session=SEED,
        principal=TEN_SESSIONS,
        running_principal=16,
        running_tenant=64,
        streams_principal=500,
        lists=(Rate(600, 60),),
        stored_principal=4 * 2**30,
        stored_tenant=32 * 2**30,
    )
    assert rules({}, others=True, known=True) == known
    unlimited = rules({"CWM_RATE_LIMIT_PRINCIPAL": "none"}, others=True, known=True)
    assert unlimited == replace(known, principal=())


def test_what_is_stored_is_limited_where_users_are_known_unless_it_is_set() -> None:
    for known in (True, False):
        set_ = rules(
            {"CWM_STORED_PRINCIPAL_GB": "0", "CWM_STORED_TENANT_GB": "0.5"}, others=True, known=known
        )
        assert (set_.stored_principal, set_.stored_tenant) == (None, 2**29)


def test_how_many_run_at_once_is_limited_where_users_are_known_unless_it_is_set() -> None:
    for known in (True, False):
        lifted = rules({"CWM_CONCURRENT_PRINCIPAL": "0"}, others=True, known=known)
        assert (lifted.running_principal, lifted.running_tenant) == (None, 64 if known else None)
        set_ = rules(
            {"CWM_CONCURRENT_PRINCIPAL": "100", "CWM_CONCURRENT_TENANT": "0"}, others=True, known=known
        )
        assert (set_.running_principal, set_.running_tenant) == (100, None)


def test_a_users_default_limit_goes_with_that_of_a_session() -> None:
    assert rules({"CWM_RATE_LIMIT_SESSION": "900/minute"}, others=True, known=True).principal == (
        Rate(9_000, 60),
    )
    assert rules({"CWM_RATE_LIMIT_SESSION": "none"}, others=True, known=True).principal == ()


def test_a_limit_that_is_set_holds_for_whoever_asks() -> None:
    environ = {
        "CWM_RATE_LIMIT_SESSION": "5/second",
        "CWM_RATE_LIMIT_PRINCIPAL": "100/minute",
        "CWM_RATE_LIMIT_TENANT": "1000/minute, 20000/hour",
        "CWM_CONCURRENT_PRINCIPAL": "4",
        "CWM_CONCURRENT_TENANT": "16",
        "CWM_STREAMS_PRINCIPAL": "8",
        "CWM_RATE_LIMIT_LISTS": "7/minute",
        "CWM_TOKEN_BUDGET_PRINCIPAL": "100000/day",
        "CWM_TOKEN_BUDGET_TENANT": "1000000/day",
    }
    for others in (True, False):
        assert rules(environ, others=others) == LimitRules(
            session=(Rate(5, 1),),
            principal=(Rate(100, 60),),
            lists=(Rate(7, 60),),
            tenant=(Rate(1_000, 60), Rate(20_000, 3_600)),
            running_principal=4,
            running_tenant=16,
            streams_principal=8,
            principal_tokens=(Rate(100_000, 86_400),),
            tenant_tokens=(Rate(1_000_000, 86_400),),
        )
    none = {"CWM_RATE_LIMIT_SESSION": "none", "CWM_STREAMS_PRINCIPAL": "0"}
    assert rules(none, others=True) == LimitRules()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CWM_RATE_LIMIT_SESSION", "60 per minute"),
        ("CWM_RATE_LIMIT_TENANT", "auto"),
        ("CWM_TOKEN_BUDGET_TENANT", "0/day"),
        ("CWM_RATE_LIMIT_ON_FAILURE", "maybe"),
        ("CWM_CONCURRENT_TENANT", "-1"),
    ],
)
def test_a_mistake_names_its_variable(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=variable):
        settings_from(b"", {variable: value}, FILE)


def test_a_tool_has_limits_of_its_own_in_the_file() -> None:
    document = b"tools: {web_*: {rate_limits: {session: '5/minute', tenant: none}}, files_read: {}}"
    policies = settings_from(document, {}, FILE).budgets.policies
    assert policies.of("web_search").rates == ToolRates(session=(Rate(5, 60),), tenant=())
    assert policies.of("files_read").rates == ToolRates()


@pytest.mark.parametrize("given", ["5/minute", "{session: 5}", "{session: often}", "{user: 5/minute}"])
def test_a_tools_limit_that_is_none_is_refused_by_name(given: str) -> None:
    with pytest.raises(SettingsError, match=r"tools\.web_search"):
        settings_from(f"tools: {{web_search: {{rate_limits: {given}}}}}".encode(), {}, FILE)


def test_failure_of_the_store_allows_unless_told_otherwise() -> None:
    assert Limits().rate_limit_on_failure == "allow"
