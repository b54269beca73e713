"""``capture`` in ``cwm.yaml``: what becomes of it, and what a mistake says."""

from __future__ import annotations

from pathlib import Path

import pytest

from cwm.domain.conversation import Capture, CapturePolicies
from cwm.settings import SettingsError
from cwm.settings.load import settings_from

PAGE = (Path(__file__).parents[2] / "docs" / "turns.md").read_text()
FILE = Path("cwm.yaml")


def read(document: str) -> CapturePolicies:
    return settings_from(document.encode(), {}, FILE).capture


@pytest.mark.parametrize("document", ["", "capture:", "capture: {mode: }", "capture: {headers: []}"])
def test_a_single_user_has_everything_recorded_and_a_team_what_clients_name(document: str) -> None:
    policies = read(document)
    assert policies.of("acme", single_user=True) is Capture.ALL
    assert policies.of("acme", single_user=False) is Capture.NAMED


def test_the_example_of_the_docs_is_read_as_it_says() -> None:
    example = next(block for block in PAGE.split("```yaml\n")[1:] if block.startswith("capture:"))
    policies = read(example.partition("```")[0])
    assert policies == CapturePolicies(
        Capture.ALL, {"acme": Capture.OFF}, ("x-thread",), fixed_ids=("my-tool",), by_cache_key=True
    )
    assert policies.of("acme", single_user=True) is Capture.OFF
    assert policies.of("others", single_user=False) is Capture.ALL


@pytest.mark.parametrize(
    ("capture", "unstored"),
    [("{}", Capture.ALL), ("{store_false: recorded}", Capture.ALL), ("{store_false: off}", Capture.OFF)],
)
def test_store_false_keeps_a_request_from_being_recorded_where_the_file_says_so(
    capture: str, unstored: Capture
) -> None:
    assert read(f"capture: {capture}").unstored is unstored


@pytest.mark.parametrize(
    ("capture", "words"),
    [
        ("some", "capture in cwm.yaml: must hold fields by name"),
        ("{mode: some}", "capture.mode in cwm.yaml"),
        ("{store_false: all}", "capture.store_false in cwm.yaml"),
        ("{mode: true}", "capture.mode in cwm.yaml"),
        ("{headers: [a b]}", "capture.headers.0 in cwm.yaml"),
        ("{tenants: {acme: {}}}", "capture.tenants.acme.mode in cwm.yaml: is required"),
        ("{fixed_ids: ['']}", "capture.fixed_ids.0 in cwm.yaml"),
        ("{by_cache_key: 1}", "capture.by_cache_key in cwm.yaml"),
        ("{modes: all}", "capture.modes in cwm.yaml: is not a field of 'capture'"),
    ],
)
def test_a_mistake_is_named_with_its_place(capture: str, words: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read(f"capture: {capture}")
    assert words in str(refused.value)
