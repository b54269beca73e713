"""Following several paths at once."""

from __future__ import annotations

from cwm.services.results.preview.masks import Mask


def test_any_depth_includes_none() -> None:
    mask = Mask.of(["a.**.id"])
    inner = mask.at("a")
    assert inner is not None
    found = inner.at("id")
    assert found is not None
    assert found.selects
    assert mask.at("b") is None


def test_a_path_that_can_not_be_read_leads_nowhere() -> None:
    mask = Mask.of(["items[0]", "id"])
    assert mask.at("items") is None
    assert mask.at("id") is not None
