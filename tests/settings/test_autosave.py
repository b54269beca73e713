"""``freeze.auto`` in ``cwm.yaml``: what becomes of it, and what a mistake says."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from cwm.domain.autosave import AutosavePolicies, AutosavePolicy
from cwm.settings import SettingsError
from cwm.settings.load import settings_from

PAGE = (Path(__file__).parents[2] / "docs" / "turns.md").read_text()
FILE = Path("cwm.yaml")
OFTEN = AutosavePolicy(4096, timedelta(minutes=10), 3)


def read(document: str) -> AutosavePolicies:
    return settings_from(document.encode(), {}, FILE).autosave


@pytest.mark.parametrize(
    "document",
    [
        "",
        "freeze:",
        "freeze: {auto: }",
        "freeze: {auto: {keep: 5}}",
        "freeze: {auto: {enabled: false, every_tokens: 4096}}",
    ],
)
def test_without_a_reason_nothing_is_frozen_by_itself(document: str) -> None:
    assert read(document) == AutosavePolicies()


@pytest.mark.parametrize(
    ("fields", "policy"),
    [
        ("every_tokens: 4096, every_minutes: 10", OFTEN),
        ("every_minutes: 0.5, keep: 1", AutosavePolicy(None, timedelta(seconds=30), 1)),
        ("every_tokens: 1", AutosavePolicy(1)),
    ],
)
def test_one_reason_is_enough(fields: str, policy: AutosavePolicy) -> None:
    assert read(f"freeze: {{auto: {{{fields}}}}}") == AutosavePolicies(policy)


def test_a_tenant_changes_the_fields_that_it_names() -> None:
    policies = read(
        """freeze: {auto: {every_tokens: 4096, every_minutes: 10, tenants: {
        one: {keep: 9}, more: {every_tokens: 1024, every_minutes: }, none: {enabled: false}}}}"""
    )
    assert policies.of("anybody") == OFTEN
    assert policies.of("one") == AutosavePolicy(4096, timedelta(minutes=10), 9)
    assert policies.of("more") == AutosavePolicy(1024, timedelta(minutes=10))
    assert policies.of("none") is None


def test_tenants_can_have_a_policy_where_others_have_none() -> None:
    for general in ("enabled: false, every_tokens: 4096", "keep: 3"):
        policies = read(
            f"freeze: {{auto: {{{general}, tenants: {{one: {{enabled: true, every_tokens: 8}}}}}}}}"
        )
        assert (policies.of("anybody"), policies.of("one")) == (None, AutosavePolicy(8))


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("freeze: 3", "freeze in cwm.yaml: must hold fields by name"),
        ("freeze: {automatic: {}}", "freeze.automatic in cwm.yaml: is not a field of 'freeze'"),
        ("freeze: {auto: yes}", "freeze.auto in cwm.yaml: must hold fields by name"),
        ("freeze: {auto: {every: 3}}", "freeze.auto.every in cwm.yaml: is not a field of 'freeze'"),
        (
            "freeze: {auto: {every_tokens: 0}}",
            "freeze.auto.every_tokens in cwm.yaml: input should be greater than",
        ),
        (
            "freeze: {auto: {every_tokens: true}}",
            "freeze.auto.every_tokens in cwm.yaml: input should be a valid",
        ),
        (
            "freeze: {auto: {every_minutes: 0}}",
            "freeze.auto.every_minutes in cwm.yaml: input should be greater",
        ),
        ("freeze: {auto: {every_minutes: .inf}}", "freeze.auto.every_minutes in cwm.yaml: input should be"),
        ("freeze: {auto: {keep: 0}}", "freeze.auto.keep in cwm.yaml: input should be greater than"),
        ("freeze: {auto: {keep: 1001}}", "freeze.auto.keep in cwm.yaml: input should be less than"),
        (
            "freeze: {auto: {tenants: {one: {keep: many}}}}",
            "freeze.auto.tenants.one.keep in cwm.yaml: input should be a valid integer",
        ),
        (
            "freeze: {auto: {tenants: {one: {tenants: {}}}}}",
            "freeze.auto.tenants.one.tenants in cwm.yaml: is not",
        ),
        (
            "freeze: {auto: {tenants: {'a b': {}}}}",
            "freeze.auto.tenants.a b in cwm.yaml: string should match",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(document: str, says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read(document)
    assert str(refused.value).startswith(says)


def test_what_the_page_shows_is_what_can_be_written() -> None:
    block = PAGE.split("## Freeze by itself")[1].split("```yaml\n")[1].split("```")[0]
    policies = read(block)
    assert policies.default == OFTEN
    assert (policies.of("acme"), policies.of("demo")) == (AutosavePolicy(1024, timedelta(minutes=10)), None)
