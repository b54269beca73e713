"""What is kept of an engine's identity, by gateways of several versions."""

from __future__ import annotations

from dataclasses import replace

from cwm.domain.engine import EngineIdentity, derive_cache_salt, differences, engine_key

TINY = EngineIdentity("tiny", "/models/tiny", "kv-1", 2048, "0.32.0", engine="one")


def test_what_is_kept_of_an_identity_is_the_same_identity() -> None:
    for identity in (TINY, replace(TINY, adapter="/adapters/a")):
        assert EngineIdentity.from_dict(identity.as_dict()) == identity


def test_why_an_engine_reuses_no_kv_is_kept_and_makes_no_other_engine_of_it() -> None:
    closed = replace(TINY, chunk_size=64, no_reuse="Nothing is stored.")
    opened = replace(closed, no_reuse="")
    kept = EngineIdentity.from_dict(closed.as_dict())
    assert (kept.no_reuse, kept.stored_chunk, opened.stored_chunk) == ("Nothing is stored.", None, 64)
    assert "no_reuse" not in opened.as_dict()
    assert closed == opened
    assert differences(closed, opened) == ()
    assert engine_key(closed) == engine_key(opened)
    assert derive_cache_salt(b"key", "acme", closed) == derive_cache_salt(b"key", "acme", opened)


def test_gateways_from_before_adapters_read_what_is_kept_of_an_engine_without_one() -> None:
    assert "adapter" not in TINY.as_dict()


def test_what_a_later_version_keeps_besides_is_left_out() -> None:
    assert EngineIdentity.from_dict(TINY.as_dict() | {"moon_phase": "full"}) == TINY
