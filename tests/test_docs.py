"""What the pages in docs/ name is there: commands, variables, files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from cwm.cli.root import app
from cwm.settings import CONFIG_ENV, ENV_PREFIX, GROUPS

ROOT = Path(__file__).parent.parent
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
SETTINGS = {f"{ENV_PREFIX}{name.upper()}" for group in GROUPS.values() for name in group.model_fields}
DEPLOYED = "".join(
    file.read_text()
    for file in [
        ROOT / "compose.yaml",
        *(ROOT / "tests" / "images").glob("*"),
        ROOT / "deploy/compose/secrets.sh",
    ]
    if file.is_file()
)


def commands() -> set[str]:
    """Every command, alone and with each of its subcommands."""
    known = set()
    for name, command in getattr(typer.main.get_command(app), "commands", {}).items():
        known |= {name, *(f"{name} {each}" for each in getattr(command, "commands", {}))}
    return known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_command_of_a_page_exists(page: Path) -> None:
    known = commands()
    groups = {each.partition(" ")[0] for each in known if " " in each}
    for name, rest in re.findall(r"(?:`|\$ |bin/)cwm ([a-z]+)((?: [a-z]+)?)", page.read_text()):
        written = f"{name}{rest}" if name in groups else name
        assert written in known, written


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_variable_of_a_page_exists(page: Path) -> None:
    known = SETTINGS | {f"{name}_FILE" for name in SETTINGS} | {CONFIG_ENV}
    named = set(re.findall(r"CWM_[A-Z_]+[A-Z]", page.read_text()))
    assert {name for name in named - known if name not in DEPLOYED} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_of_a_page_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []
