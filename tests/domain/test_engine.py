"""What is kept of an engine's identity, by gateways of several versions."""

from __future__ import annotations

from dataclasses import replace

from cwm.domain.engine import EngineIdentity

TINY = EngineIdentity("tiny", "/models/tiny", "kv-1", 2048, "0.32.0", engine="one")


def test_what_is_kept_of_an_identity_is_the_same_identity() -> None:
    for identity in (TINY, replace(TINY, adapter="/adapters/a")):
        assert EngineIdentity.from_dict(identity.as_dict()) == identity


def test_gateways_from_before_adapters_read_what_is_kept_of_an_engine_without_one() -> None:
    assert "adapter" not in TINY.as_dict()


def test_what_a_later_version_keeps_besides_is_left_out() -> None:
    assert EngineIdentity.from_dict(TINY.as_dict() | {"moon_phase": "full"}) == TINY
