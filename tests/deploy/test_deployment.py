"""The digest of everything that an engine's KV depends on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.deploy.modules import deployment


class Options:
    """A group of vLLM's options, which hashes those that change what is computed."""

    def __init__(self, hashed: str, **others: Any) -> None:
        self.hashed = hashed
        vars(self).update(others)

    def compute_hash(self) -> str:
        return self.hashed


def engine(**other: Any) -> SimpleNamespace:
    groups = {
        "model_config": Options("m", dtype="bfloat16"),
        "cache_config": Options("c", block_size=32),
        "parallel_config": Options("p"),
        "attention_config": Options("a"),
        "scheduler_config": Options("s"),
        "quant_config": None,
        "lora_config": None,
        "speculative_config": None,
    }
    return SimpleNamespace(**groups | other)


def digest(weights: str | None = "w", **other: Any) -> str | None:
    told: str | None = deployment.deployment_digest(engine(**other), weights)
    return told


def test_engines_that_differ_in_how_they_schedule_are_one_deployment() -> None:
    first = digest()
    assert first is not None
    assert first.startswith("kv-")
    assert digest(scheduler_config=Options("64 sequences at most")) == first


@pytest.mark.parametrize(
    "other",
    [
        {"weights": "others"},
        {"model_config": Options("m", dtype="float16")},
        {"model_config": Options("another rope", dtype="bfloat16")},
        {"cache_config": Options("c", block_size=16)},
        {"cache_config": Options("fp8", block_size=32)},
        {"parallel_config": Options("two ranks")},
        {"attention_config": Options("another backend")},
        {"quant_config": SimpleNamespace()},
        {"lora_config": Options("adapters")},
        {"speculative_config": Options("drafts")},
    ],
)
def test_engines_that_differ_in_what_kv_depends_on_are_none(other: dict[str, Any]) -> None:
    assert digest(**other) != digest()


def test_an_engine_that_cannot_say_what_it_is_made_of_has_no_digest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert digest(None) is None, "its weights are not known"
    assert digest(model_config=SimpleNamespace()) is None
    assert "has no digest" in capsys.readouterr().out
