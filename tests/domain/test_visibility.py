"""Who may do what with a session or window, and how visible a new one is."""

from __future__ import annotations

from typing import Any

import pytest

from cwm.domain.access import EVERY, AccessScope, granted
from cwm.domain.errors import InvalidParameterError
from cwm.domain.principal import Principal
from cwm.domain.visibility import Right, circle_of, circle_of_new, may, visibility_of
from tests.contracts.nouns import a_session

ANN = Principal("acme", "ann", workspaces=frozenset({"design"}))
BOB = Principal("acme", "bob", workspaces=frozenset({"design", "ops"}))
ADMIN = Principal("acme", "root", EVERY)
AUDITOR = Principal("acme", "eve", granted(["windows:read", "others:read"]))
CIRCLES = ("owner:ann", "workspace:design", "workspace:ops", "tenant")


@pytest.mark.parametrize(
    ("principal", "circles"),
    [
        (ANN, ["owner:ann", "workspace:design", "tenant"]),
        (BOB, ["workspace:design", "workspace:ops", "tenant"]),
        (Principal("acme", "tenant"), ["tenant"]),
    ],
)
def test_a_principal_does_everything_in_its_own_circles_and_nothing_elsewhere(
    principal: Principal, circles: list[str]
) -> None:
    for right in Right:
        assert [circle for circle in CIRCLES if may(principal, circle, right)] == circles


def test_an_administrator_sees_and_deletes_records_and_reads_no_contents() -> None:
    for circle in CIRCLES[:3]:
        assert {right for right in Right if may(ADMIN, circle, right)} == {Right.RECORD, Right.DELETE}


def test_the_scope_for_what_others_have_reads_and_changes_nothing() -> None:
    for circle in CIRCLES[:3]:
        assert {right for right in Right if may(AUDITOR, circle, right)} == {Right.RECORD, Right.CONTENTS}
    assert AccessScope.OTHERS_READ not in granted(["admin"])


def test_what_is_private_has_its_owners_circle() -> None:
    assert circle_of("private", ANN) == "owner:ann"
    for visibility in ("private", "workspace:design", "tenant"):
        assert visibility_of(circle_of(visibility, ANN)) == visibility


@pytest.mark.parametrize(
    "visibility", ["", "public", "owner:bob", "workspace:", "workspace:ops", "workspace:a b", "tenant\n"]
)
def test_nothing_is_put_where_its_owner_would_not_see_it(visibility: str) -> None:
    with pytest.raises(InvalidParameterError) as refused:
        circle_of(visibility, ANN)
    assert refused.value.context["field"] == "visibility"


@pytest.mark.parametrize(
    ("source", "default", "circle"),
    [
        ("owner:ann", "tenant", "owner:ann"),
        ("owner:ann", "private", "owner:ann"),
        ("workspace:design", "tenant", "workspace:design"),
        ("workspace:design", "private", "owner:ann"),
        ("workspace:ops", "tenant", "owner:ann"),
        ("tenant", "tenant", "tenant"),
        ("tenant", "private", "owner:ann"),
    ],
)
def test_a_copy_is_not_more_visible_than_its_source(source: str, default: str, circle: str) -> None:
    assert circle_of_new(ANN, None, default, a_session(circle=source)) == circle


def test_its_owner_makes_a_window_of_a_private_session_as_visible_as_windows_are() -> None:
    assert circle_of_new(ANN, None, "tenant", a_session(circle="owner:ann"), copy=False) == "tenant"
    shared = a_session(owner="bob", circle="workspace:design")
    assert circle_of_new(ANN, None, "tenant", shared, copy=False) == "workspace:design"


@pytest.mark.parametrize(
    ("source", "visibility", "allowed"),
    [
        ({"circle": "owner:ann"}, "tenant", True),
        ({"owner": "bob", "circle": "workspace:design"}, "workspace:design", True),
        ({"owner": "bob", "circle": "workspace:design"}, "private", True),
        ({"owner": "bob", "circle": "workspace:design"}, "tenant", False),
        ({"owner": "bob", "circle": "workspace:ops"}, "workspace:design", False),
        ({"owner": "bob", "circle": "tenant"}, "workspace:design", True),
    ],
)
def test_only_its_owner_makes_a_copy_more_visible(
    source: dict[str, Any], visibility: str, allowed: bool
) -> None:
    def made() -> str:
        return visibility_of(circle_of_new(ANN, visibility, "private", a_session(**source)))

    if allowed:
        assert made() == visibility
    else:
        with pytest.raises(InvalidParameterError, match="only its owner"):
            made()


def test_cwm_itself_acts_in_a_sessions_circle() -> None:
    for circle in CIRCLES:
        session = a_session(circle=circle)
        assert may(session.keeper, circle, Right.USE)
        assert circle_of(visibility_of(circle), session.keeper) == circle
