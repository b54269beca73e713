from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cwm.domain.engine import EngineIdentity, derive_cache_salt
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
    return (
        identity.root,
        identity.fingerprint,
        str(identity.chunk_size),
        str(identity.hash_algorithm),
        identity.weights_digest,
    )


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


@pytest.mark.parametrize(
    "changed",
    [
        {"root": "/models/other"},
        {"fingerprint": "fp-2"},
        {"chunk_size": 64},
        {"chunk_size": None},
        {"hash_algorithm": "sha256_cbor"},
        {"weights_digest": "sha256:01"},
    ],
)
def test_whatever_changes_the_kv_changes_the_salt(changed: dict[str, Any]) -> None:
    assert derive_cache_salt(_SECRET, "acme", replace(IDENTITY, **changed)) != derive_cache_salt(
        _SECRET, "acme", IDENTITY
    )


@pytest.mark.parametrize("changed", [{"max_model_len": 1}, {"model": "alias"}, {"lmcache_version": "0.5.7"}])
def test_what_does_not_change_the_kv_keeps_the_salt(changed: dict[str, Any]) -> None:
    assert derive_cache_salt(_SECRET, "acme", replace(IDENTITY, **changed)) == derive_cache_salt(
        _SECRET, "acme", IDENTITY
    )


def test_another_server_secret_gives_another_salt() -> None:
    assert derive_cache_salt(b"one", "acme", IDENTITY) != derive_cache_salt(b"two", "acme", IDENTITY)
