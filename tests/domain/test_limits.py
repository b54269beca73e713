"""What is counted together, and how limits are spelled."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.errors import RateLimitError
from cwm.domain.limits import Level, LimitRules, Rate, ToolRates, parse_rates
from cwm.domain.principal import Principal

ANN = Principal("acme", "ann")
MINUTE, HOUR = Rate(60, 60), Rate(1_000, 3_600)
RULES = LimitRules(session=(MINUTE, HOUR), principal=(HOUR,), tenant=(HOUR,))


def test_rates_are_read_as_people_write_them_the_shortest_first() -> None:
    assert parse_rates("1000/hour, 60/minute") == (MINUTE, HOUR)
    assert parse_rates(" 5 / second ") == (Rate(5, 1),)
    assert parse_rates("7/day") == (Rate(7, 86_400),)
    assert parse_rates("none") == ()
    assert str(MINUTE) == "60/minute"


@pytest.mark.parametrize(
    "text", ["", "60", "0/minute", "-1/minute", "60/week", "60/minute,", "1.5/hour", "60/minutes", "all"]
)
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="60/minute"):
        parse_rates(text)


def test_a_request_counts_for_its_session_its_principal_and_its_tenant_the_narrowest_first() -> None:
    buckets = list(RULES.buckets(ANN, "s", None))
    assert [(bucket.level, bucket.rate) for bucket in buckets] == [
        (Level.SESSION, MINUTE),
        (Level.SESSION, HOUR),
        (Level.PRINCIPAL, HOUR),
        (Level.TENANT, HOUR),
    ]


def test_the_rates_of_a_tool_stand_in_place_of_the_general_ones_level_by_level() -> None:
    own = ToolRates(session=(Rate(5, 60),), tenant=())
    general = list(RULES.buckets(ANN, "s", "window_list"))
    buckets = list(RULES.buckets(ANN, "s", "window_list", own))
    assert [(bucket.level, bucket.rate) for bucket in buckets] == [
        (Level.SESSION, Rate(5, 60)),
        (Level.PRINCIPAL, HOUR),
    ]
    assert buckets[0].key != general[0].key
    assert buckets[1] == general[2]


_NAMES = st.text(st.sampled_from('a/"[],:\0 '), max_size=4)
_WHO = st.tuples(_NAMES, _NAMES, st.none() | _NAMES, st.none() | _NAMES)


@given(st.sets(_WHO, min_size=2, max_size=6))
def test_whatever_names_are_made_of_no_two_share_a_session_or_a_tool(who: set[tuple[str, ...]]) -> None:
    own = ToolRates(session=(MINUTE,))

    def key(tenant: str, subject: str, session: str | None, tool: str | None) -> str:
        (bucket,) = LimitRules().buckets(Principal(tenant, subject), session, tool, own)
        return bucket.key

    assert all(key(*one) != key(*other) for one, other in combinations(who, 2))


def test_requests_of_which_nobody_knows_the_session_have_no_sessions_limit_but_a_tools_own() -> None:
    assert [bucket.level for bucket in RULES.buckets(ANN, None, None)] == [Level.PRINCIPAL, Level.TENANT]
    own = ToolRates(session=(MINUTE,))
    levels = [bucket.level for bucket in RULES.buckets(ANN, None, "web_search", own)]
    assert levels == [Level.SESSION, Level.PRINCIPAL, Level.TENANT]


def test_tenants_share_no_count_and_principals_of_one_share_its_own() -> None:
    def keys(principal: Principal) -> dict[Level, str]:
        return {bucket.level: bucket.key for bucket in RULES.buckets(principal, None, None)}

    ann, bob, other = keys(ANN), keys(Principal("acme", "bob")), keys(Principal("acne", "ann"))
    assert ann[Level.TENANT] == bob[Level.TENANT]
    assert ann[Level.PRINCIPAL] != bob[Level.PRINCIPAL]
    assert set(ann.values()).isdisjoint(other.values())
    assert "ann" not in str(ann)


def test_a_limit_that_is_exceeded_is_told_as_the_contract_has_it() -> None:
    told = RateLimitError("Too often.", retry_after=44.2, level="session").as_dict()
    assert told == {
        "code": "CWM-7001",
        "message": "Too often.",
        "retryable": True,
        "context": {"level": "session", "retry_after_seconds": 45},
        "error": "Rate limit exceeded",
        "retry_after_seconds": 45,
    }
    assert RateLimitError("At once.", retry_after=0.0).retry_after_seconds == 1
