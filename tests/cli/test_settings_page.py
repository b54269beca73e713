from __future__ import annotations

from pathlib import Path

from cwm.settings import GROUPS
from docs.generate.settings import page

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_of_settings_is_what_the_code_says() -> None:
    assert PAGE.read_text() == page(), "make it again: python -m docs.generate.settings > docs/settings.md"


def test_the_page_names_every_variable_once() -> None:
    variables = [f"`CWM_{name.upper()}`" for group in GROUPS.values() for name in group.model_fields]

    assert [page().count(f"| {variable} |") for variable in variables] == [1] * len(variables)
