"""Who hears of a change."""

from __future__ import annotations

import pytest

from cwm.domain.changes import Change, ChangeKind


@pytest.mark.parametrize(
    ("tenant", "agent_session", "hears"),
    [
        (None, None, {("a", "s"), ("a", "t"), ("a", None), ("b", "s"), ("b", None)}),
        ("a", None, {("a", "s"), ("a", "t"), ("a", None)}),
        ("a", "s", {("a", "s"), ("a", None)}),
        (None, "s", {("a", "s"), ("b", "s")}),
    ],
)
def test_a_change_concerns_its_tenant_and_its_agent_session(
    tenant: str | None, agent_session: str | None, hears: set[tuple[str, str | None]]
) -> None:
    change = Change(ChangeKind.TOOLS, tenant=tenant, agent_session=agent_session)
    listeners = [("a", "s"), ("a", "t"), ("a", None), ("b", "s"), ("b", None)]
    assert {who for who in listeners if change.concerns(*who)} == hears


def test_what_is_private_is_heard_by_the_one_whose_key_it_names() -> None:
    change = Change(ChangeKind.RESOURCE, "cwm://context/session/k", tenant="a", private_to="principal-1")
    assert change.concerns("a", None, "principal-1")
    assert not change.concerns("a", None, "principal-2")
    assert not change.concerns("a", "s", "s")
    assert not change.concerns("a", None)
    assert not change.concerns("b", None, "principal-1")
