"""What scopes stand for, and what the text of an API key gives away."""

from __future__ import annotations

import pytest

from cwm.domain.access import EVERY, OF_AN_AGENT, AccessScope, granted, spelled
from cwm.domain.api_key import digest_of, taken_apart, written
from cwm.domain.errors import ErrorKind, InsufficientScopeError
from cwm.domain.principal import Principal


def test_a_name_grants_its_scope_and_an_asterisk_all_of_a_noun() -> None:
    assert granted(["windows:read"]) == {AccessScope.WINDOWS_READ}
    assert granted(["context:*", "tools:*"]) == {
        AccessScope.CONTEXT_READ,
        AccessScope.CONTEXT_WRITE,
        AccessScope.TOOLS_CALL,
    }
    assert granted(["admin"]) == EVERY
    assert EVERY - {AccessScope.ADMIN} == OF_AN_AGENT


@pytest.mark.parametrize(
    "name", ["", "*", ":*", "openid", "windows", "windows:", "Windows:read", "admin:*", "win:*"]
)
def test_other_names_grant_nothing(name: str) -> None:
    assert granted([name]) == frozenset()


def test_a_principal_is_the_same_whatever_it_may_do() -> None:
    reader, writer = Principal("acme", "a", granted(["windows:read"])), Principal("acme", "a", EVERY, "cli")
    assert reader == writer
    assert hash(reader) == hash(writer)
    assert Principal("acme", "a").scopes == frozenset()


def test_a_missing_scope_is_named() -> None:
    reader = Principal("acme", "a", granted(["windows:read"]))
    reader.require(frozenset({AccessScope.WINDOWS_READ}))
    with pytest.raises(InsufficientScopeError, match="the scope sessions:write,") as refused:
        reader.require(frozenset({AccessScope.WINDOWS_READ, AccessScope.SESSIONS_WRITE}))
    assert refused.value.code == "CWM-9002"
    assert refused.value.kind is ErrorKind.FORBIDDEN
    assert refused.value.context["required"] == spelled(
        {AccessScope.WINDOWS_READ, AccessScope.SESSIONS_WRITE}
    )


def test_a_key_is_taken_apart_as_it_was_written() -> None:
    secret = "aB3_-" + "x" * 38
    key = written("0123456789abcdef", secret)
    assert taken_apart(key) == ("0123456789abcdef", secret)
    for wrong in ("", "cwm_", key[:-1], key + "x", key.upper(), key.replace("cwm_", "cmw_"), f"{key}\n"):
        assert taken_apart(wrong) is None
    assert secret not in digest_of(secret)
