"""``keep`` in ``cwm.yaml``: what becomes of it, and what a mistake says."""

from __future__ import annotations

from pathlib import Path

import pytest

from cwm.domain.keep import KeepPolicies, KeepPolicy, TreeLimit
from cwm.settings import SettingsError
from cwm.settings.load import settings_from

PAGE = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()


def read(document: str) -> KeepPolicies:
    return settings_from(document.encode(), {}, Path("cwm.yaml")).keep


@pytest.mark.parametrize("document", ["", "keep:", "keep: {messages: kept}", "keep: {tenants: }"])
def test_messages_are_kept_unless_the_file_says_otherwise(document: str) -> None:
    assert read(document) == KeepPolicies()


def test_a_tenant_changes_the_fields_that_it_names() -> None:
    policies = read(
        "keep: {session_ttl_seconds: 60, tenants: {one: {messages: none}, two: {session_ttl_seconds: 0}}}"
    )
    assert policies.of("anybody") == policies.of(None) == KeepPolicy(session_ttl=60)
    assert policies.of("one") == KeepPolicy(messages=False, session_ttl=60)
    assert policies.of("two") == KeepPolicy(session_ttl=0)


def test_sessions_that_were_found_may_have_lifetimes_of_their_own() -> None:
    policies = read("keep: {found_session_ttl_seconds: 60, tenants: {one: {found_session_kept_seconds: 0}}}")
    assert policies.default == KeepPolicy(found_session_ttl=60)
    assert policies.of("one") == KeepPolicy(found_session_ttl=60, found_session_kept=0)


def test_a_session_may_be_bounded_in_turns_and_tokens() -> None:
    policies = read("keep: {session_turns: 9, tenants: {one: {session_tokens: 100}}}")
    assert policies.default.tree == TreeLimit(9)
    assert policies.of("one").tree == TreeLimit(9, 100)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("keep: 3", "keep in cwm.yaml: must hold fields by name"),
        ("keep: {messages: some}", "keep.messages in cwm.yaml: input should be 'kept' or 'none'"),
        ("keep: {session_ttl_seconds: -1}", "keep.session_ttl_seconds in cwm.yaml: input should be greater"),
        ("keep: {session_turns: 0}", "keep.session_turns in cwm.yaml: input should be greater than"),
        ("keep: {turns: 3}", "keep.turns in cwm.yaml: is not a field of 'keep'"),
        ("keep: {tenants: {'a b': {}}}", "keep.tenants.a b in cwm.yaml: string should match"),
    ],
)
def test_a_mistake_is_named_with_its_place(document: str, says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read(document)
    assert str(refused.value).startswith(says)


def test_what_the_page_shows_is_what_can_be_written() -> None:
    policies = read(PAGE.split("```yaml\n")[1].split("```")[0])
    assert policies.default.messages
    assert not policies.of("clinic").messages
