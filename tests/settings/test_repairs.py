"""``repairs`` in ``cwm.yaml``: what is repaired for which clients, and what a mistake says."""

from __future__ import annotations

from pathlib import Path

import pytest

from cwm.domain.habits import Repair, RepairPolicies
from cwm.settings import SettingsError
from cwm.settings.load import settings_from

PAGE = (Path(__file__).parents[2] / "docs" / "turns.md").read_text()
BOTH = (Repair.BILLING_BLOCK, Repair.TOOL_ORDER)


def read(document: str) -> RepairPolicies:
    return settings_from(document.encode(), {}, Path("cwm.yaml")).repairs


@pytest.mark.parametrize(
    "document", ["", "repairs:", "repairs: {clients: }", "repairs: {clients: {}, tenants: }"]
)
def test_nothing_is_repaired_unless_the_file_says_so(document: str) -> None:
    assert read(document) == RepairPolicies()


def test_repairs_are_chosen_by_client_and_tenant() -> None:
    policies = read(
        "repairs: {clients: {'claude-cli*': [billing_block, tool_order]}, tenants: {acme: {clients: {'*': [tool_order]}}, demo: {}}}"
    )
    assert policies == RepairPolicies(
        {"claude-cli*": BOTH}, {"acme": {"*": (Repair.TOOL_ORDER,)}, "demo": {}}
    )


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("repairs: {'claude-cli*': []}", "repairs.claude-cli* in cwm.yaml: is not a field of 'repairs'"),
        ("repairs: {clients: [a]}", "repairs.clients in cwm.yaml: must hold fields by name"),
        (
            "repairs: {clients: {'*': [date]}}",
            "repairs.clients.*.0 in cwm.yaml: input should be 'billing_block' or 'tool_order'",
        ),
        ("repairs: {tenants: {'a b': {}}}", "repairs.tenants.a b in cwm.yaml: string should match"),
    ],
)
def test_a_mistake_is_named_with_its_place(document: str, why: str) -> None:
    with pytest.raises(SettingsError) as wrong:
        read(document)
    assert str(wrong.value).startswith(why)


def test_what_the_page_shows_is_what_can_be_written() -> None:
    written = next(
        part.partition("```")[0] for part in PAGE.split("```yaml\n") if part.startswith("repairs:")
    )
    policies = read(written)
    assert policies.of("anybody", "claude-cli/2.1.197 (external, sdk-cli)") == {*BOTH}
    assert not policies.of("acme", "claude-cli/2.1.197 (external, sdk-cli)")
