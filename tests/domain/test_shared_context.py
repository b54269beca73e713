"""Scopes, keys, and the resources that they are."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cwm.domain.canonical import canonical_json
from cwm.domain.errors import InvalidParameterError
from cwm.domain.shared_context import (
    Entry,
    Write,
    difference,
    named_by,
    scope_by_key,
    scope_of,
    uri_of,
    watches,
)

SCOPES = st.sampled_from(["session", "tenant", "workspace:a", "workspace:b.c"])
KEYS = st.text(min_size=1, max_size=40).filter(lambda key: key.isprintable())
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # Half of a surrogate pair is no text.
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=10,
)


@given(SCOPES, KEYS)
def test_every_key_is_one_resource(scope: str, key: str) -> None:
    uri = uri_of(scope, key)
    assert uri.isascii()
    assert not uri.endswith("*")
    assert not {" ", "?", "#"} & set(uri)
    assert named_by(uri) == (scope, key)


@given(SCOPES, KEYS, SCOPES, KEYS)
def test_two_keys_are_two_resources(scope: str, key: str, other_scope: str, other: str) -> None:
    assume((scope, key) != (other_scope, other))
    assert uri_of(scope, key) != uri_of(other_scope, other)
    assert not watches(uri_of(scope, key), uri_of(other_scope, other))


@given(SCOPES, KEYS, KEYS)
def test_a_prefix_hears_of_what_begins_so_and_of_nothing_else(scope: str, prefix: str, rest: str) -> None:
    subscribed = f"{uri_of(scope, prefix)}*"
    assert watches(subscribed, uri_of(scope, prefix))
    assert watches(subscribed, uri_of(scope, prefix + rest))
    assert watches(f"cwm://context/{scope}/*", uri_of(scope, rest))
    if not rest.startswith(prefix):
        assert not watches(subscribed, uri_of(scope, rest))


@given(SCOPES, KEYS, KEYS, KEYS)
def test_all_who_watch_something_under_a_prefix_hear_of_a_change_under_it(
    scope: str, prefix: str, rest: str, other: str
) -> None:
    changed = f"{uri_of(scope, prefix)}*"
    assert watches(uri_of(scope, prefix + rest), changed)
    for begins in (prefix, prefix + rest, prefix[:-1]):
        assert watches(f"{uri_of(scope, begins)}*", changed)
    assert not watches("cwm://windows", changed)
    if not other.startswith(prefix):
        assert not watches(uri_of(scope, other), changed)


@pytest.mark.parametrize(
    "uri", ["cwm://windows", "cwm://context/tenant", "cwm://context/nobody/k", "file:///tenant/k", "*", ""]
)
def test_what_is_no_key_names_none(uri: str) -> None:
    assert named_by(uri) is None
    assert not watches(uri, "cwm://context/tenant/k")


@pytest.mark.parametrize(
    "name", ["", "Session", "workspace:", "workspace:a b", f"workspace:{'x' * 65}", "tenant\n"]
)
def test_a_scope_is_one_of_three_kinds(name: str) -> None:
    with pytest.raises(InvalidParameterError, match="scope:"):
        scope_of("acme", "s1", name)


def test_private_scopes_are_told_apart_by_their_agent_session() -> None:
    one, other = scope_of("acme", "s1", "session"), scope_of("acme", "s2", "session")
    assert one != other
    assert one.is_private
    assert scope_by_key("acme", one.key) == one
    shared = scope_of("acme", "s1", "workspace:w")
    assert shared == scope_of("acme", "s2", "workspace:w") == scope_by_key("acme", shared.key)
    assert not shared.is_private


@given(JSON)
def test_canonical_json_is_the_value_and_nothing_else(value: Any) -> None:
    spelled = canonical_json(value)
    assert json.loads(spelled) == value
    assert canonical_json(json.loads(spelled)) == spelled


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers(), min_size=2))
def test_the_order_of_names_makes_no_difference(value: dict[str, int]) -> None:
    assert canonical_json(dict(reversed(value.items()))) == canonical_json(value)


def test_what_is_too_deep_is_refused() -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InvalidParameterError, match="too deep"):
        canonical_json(value)


def test_a_restore_writes_what_is_another_and_deletes_what_was_not() -> None:
    kept = Entry("kept", 1, "a", 1, 5, False, "ann", datetime.fromtimestamp(0, UTC))
    wanted = {"kept": kept, "gone": replace(kept, key="gone"), "other": replace(kept, key="other")}
    current = {
        # Written again, as it was.
        "kept": replace(kept, version=2),
        "other": replace(kept, key="other", version=3, priority=7),
        "new": replace(kept, key="new", version=4),
    }
    assert difference(wanted, current) == [Write("gone", "a", 1), Write("other", "a", 1), Write("new")]
