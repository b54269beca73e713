from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cwm.domain.engine import KV_FIELDS, TOKEN_FIELDS, EngineIdentity, derive_cache_salt, differences
from tests.contracts.nouns import IDENTITY

_SECRET = b"of the server"
_text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
_identities = st.builds(
    EngineIdentity,
    model=_text,
    root=_text,
    fingerprint=_text,
    max_model_len=st.just(8192),
    vllm_version=_text,
    chunk_size=st.none() | st.integers(16, 512),
    hash_algorithm=st.none() | _text,
    weights_digest=_text,
)


def _kv_facts(identity: EngineIdentity) -> tuple[Any, ...]:
    return tuple(str(getattr(identity, field)) for field in KV_FIELDS)


@given(_text, _text, _identities, _identities)
def test_two_scopes_or_engines_never_share_a_salt(
    scope: str, other_scope: str, identity: EngineIdentity, other: EngineIdentity
) -> None:
    assume((scope, _kv_facts(identity)) != (other_scope, _kv_facts(other)))
    assert derive_cache_salt(_SECRET, scope, identity) != derive_cache_salt(_SECRET, other_scope, other)


@given(_text, _identities)
def test_a_salt_is_the_same_whenever_it_is_derived_and_fits_an_lmcache_key(
    scope: str, identity: EngineIdentity
) -> None:
    salt = derive_cache_salt(_SECRET, scope, identity)
    assert salt == derive_cache_salt(_SECRET, scope, replace(identity))
    assert re.fullmatch(r"cwm1-[0-9a-f]{40}", salt)


CHANGED: dict[str, Any] = {
    "root": "/models/other",
    "fingerprint": "fp-2",
    "weights_digest": "sha256:01",
    "vllm_version": "0.33.0",
    "lmcache_version": None,
    "kv_dtype": "fp8",
    "block_size": 16,
    "chunk_size": None,
    "hash_algorithm": "sha256_cbor",
    "world_size": 2,
    "adapter": "/adapters/a",
    "tokenizer_digest": "02",
    "template_digest": "02",
}


def test_every_field_an_identity_has_is_known_to_matter_or_not() -> None:
    neither = {"model", "max_model_len", "engine", "no_reuse"}
    assert {field.name for field in fields(EngineIdentity)} == {*KV_FIELDS, *TOKEN_FIELDS, *neither}
    assert set(CHANGED) == {*KV_FIELDS, *TOKEN_FIELDS}


@pytest.mark.parametrize("field", KV_FIELDS)
def test_whatever_changes_the_kv_changes_the_salt(field: str) -> None:
    other = replace(IDENTITY, **{field: CHANGED[field]})
    assert derive_cache_salt(_SECRET, "acme", other) != derive_cache_salt(_SECRET, "acme", IDENTITY)


@pytest.mark.parametrize(
    "changed", [{"max_model_len": 1}, {"model": "alias"}, {"tokenizer_digest": "2"}, {"template_digest": "2"}]
)
def test_what_does_not_change_the_kv_keeps_the_salt(changed: dict[str, Any]) -> None:
    assert derive_cache_salt(_SECRET, "acme", replace(IDENTITY, **changed)) == derive_cache_salt(
        _SECRET, "acme", IDENTITY
    )


@pytest.mark.parametrize("field", CHANGED)
def test_each_field_alone_is_told_as_the_difference(field: str) -> None:
    (found,) = differences(IDENTITY, replace(IDENTITY, **{field: CHANGED[field]}))
    assert found.field == field
    assert found.then == str(getattr(IDENTITY, field) or "unknown")
    assert found.now == str(CHANGED[field] or "unknown")
    assert found.changes_tokens == (field in TOKEN_FIELDS)


def test_an_engine_differs_in_nothing_from_itself_under_another_name_and_length() -> None:
    assert differences(IDENTITY, replace(IDENTITY, model="alias", max_model_len=1)) == ()


@pytest.mark.parametrize("field", TOKEN_FIELDS)
def test_a_digest_that_one_side_does_not_know_is_no_difference(field: str) -> None:
    empty: dict[str, Any] = {field: ""}
    unknown = replace(IDENTITY, **empty)
    assert differences(unknown, IDENTITY) == differences(IDENTITY, unknown) == ()


def test_what_changes_tokens_is_told_first() -> None:
    found = differences(IDENTITY, replace(IDENTITY, **CHANGED))
    assert [change.field for change in found] == [*TOKEN_FIELDS, *KV_FIELDS]


def test_another_server_secret_gives_another_salt() -> None:
    assert derive_cache_salt(b"one", "acme", IDENTITY) != derive_cache_salt(b"two", "acme", IDENTITY)


def test_the_digest_of_a_deployment_is_a_difference_only_where_nothing_else_says_more() -> None:
    then, now = replace(IDENTITY, fingerprint="kv-1"), replace(IDENTITY, fingerprint="kv-2")
    (only,) = differences(then, now)
    assert only.field == "fingerprint"
    (more,) = differences(then, replace(now, weights_digest="sha256:01"))
    assert more.field == "weights_digest"
