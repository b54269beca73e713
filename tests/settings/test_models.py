"""``models.aliases`` in ``cwm.yaml``: which model a name means, and what a mistake says."""

from __future__ import annotations

from pathlib import Path

import pytest

from cwm.domain.model_aliases import ModelAliases
from cwm.settings import SettingsError
from cwm.settings.load import settings_from

FILE = Path("cwm.yaml")
SERVED = {"llama", "qwen"}


def read(document: str) -> ModelAliases:
    return settings_from(document.encode(), {}, FILE).aliases


@pytest.mark.parametrize("document", ["", "models:", "models: {aliases: }", "models: {aliases: {}}"])
def test_without_aliases_a_name_is_a_model_or_nothing(document: str) -> None:
    aliases = read(document)
    assert (aliases.served("llama", SERVED), aliases.served("claude-opus", SERVED)) == ("llama", None)


def test_a_name_means_the_served_model_of_that_name_then_its_own_alias_then_the_first_pattern() -> None:
    aliases = read(
        "models: {aliases: {'claude-*': llama, 'claude-haiku-*': qwen, claude-haiku-4: qwen, llama: qwen, gone: nobody}}"
    )
    assert aliases.served("claude-opus-4", SERVED) == "llama"
    assert aliases.served("claude-haiku-5", SERVED) == "llama"
    assert aliases.served("claude-haiku-4", SERVED) == "qwen"
    assert aliases.served("llama", SERVED) == "llama"
    assert aliases.served("gone", SERVED) is None
    assert aliases.names(SERVED) == {"claude-haiku-4": "qwen"}


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("models: {alias: {a: b}}", "models.alias in cwm.yaml: is not a field of 'models'"),
        ("models: {aliases: [a]}", "models.aliases in cwm.yaml: must hold fields by name"),
        ("models: {aliases: {a: 1}}", "models.aliases.a in cwm.yaml: must be text; put it in quotes"),
        (
            "models: {aliases: {'': a}}",
            "models.aliases. in cwm.yaml: string should have at least 1 character",
        ),
        ("models: {aliases: {a: 'b c'}}", "models.aliases.a in cwm.yaml: string should match"),
    ],
)
def test_a_mistake_is_named_with_its_place(document: str, why: str) -> None:
    with pytest.raises(SettingsError) as wrong:
        read(document)
    assert str(wrong.value).startswith(why)
