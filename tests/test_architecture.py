"""docs/architecture.md knows every room, and names none that is not there; CONTRIBUTING.md likewise."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
CODE = re.compile(r"`([^`]+)`")
FOLDERS = sorted(
    {
        file.parent.relative_to(ROOT)
        for package in ("cwm", "cwm_bench")
        for file in (ROOT / package).rglob("*.py")
    }
)
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def cells() -> Iterator[tuple[str, str]]:
    """Each piece of code in a table, with the folder that heads its column ('' where none does)."""
    heads: list[str] = []
    for line in PAGE.splitlines():
        if not line.startswith("|"):
            heads = []
            continue
        columns = [column.strip() for column in line.strip("|").split("|")]
        heads = heads or [(CODE.findall(column) or [""])[0] for column in columns]
        for head, column in zip(heads, columns, strict=True):
            yield from ((head if f"`{head}`" != column else "", code) for code in CODE.findall(column))


def named_paths() -> set[str]:
    """Every path on the page, from the root; a name in a folder's column is a room or a Python file of it."""
    listed = {f"{head}{code}" if code.endswith("/") else f"{head}{code}.py" for head, code in cells() if head}
    written = {
        code
        for code in CODE.findall(PAGE)
        if "/" in code and re.fullmatch(r"[\w./-]+", code) and code[0] != "/"
    }
    columns = {code for head, code in cells() if head}
    return listed | (written - columns)


@pytest.mark.parametrize("path", sorted(named_paths()))
def test_a_path_of_the_page_exists(path: str) -> None:
    assert (ROOT / path).exists()
    assert (ROOT / path).is_dir() == path.endswith("/")


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_a_folder_of_code_is_in_the_tables(folder: Path) -> None:
    in_tables = {f"{head}{code}" for head, code in cells()}
    assert f"{folder}/" in in_tables


@pytest.mark.parametrize("room", ["domain", "ports"])
def test_every_file_of_a_flat_room_is_in_the_table_of_nouns(room: str) -> None:
    files = {f"cwm/{room}/{file.name}" for file in (ROOT / "cwm" / room).glob("[a-z]*.py")}
    assert files - named_paths() == set()


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_a_folder_says_in_one_line_what_it_holds(folder: Path) -> None:
    docstring = ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text()))
    assert docstring
    first, _, rest = docstring.partition("\n")
    assert first.endswith(".")
    assert not rest or rest.startswith("\n")


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract["name"])
def test_an_import_contract_is_on_the_page(contract: dict[str, str]) -> None:
    assert f"| {contract['name']} |" in PAGE


def test_a_bypass_names_itself_in_the_code() -> None:
    bypasses = PAGE.split("| bypass | where |")[1]
    files = [path for path in CODE.findall(bypasses) if path.endswith(".py")]
    assert len(files) == 8
    assert [path for path in files if "# Bypass (decision 0028): " not in (ROOT / path).read_text()] == []


def test_the_page_is_one_page() -> None:
    assert len(PAGE.splitlines()) <= 150
    assert PAGE.count("sequenceDiagram") == 4


@pytest.mark.parametrize(
    "path", sorted({code for code in CODE.findall(GUIDE) if re.fullmatch(r"[\w./-]+/[\w./-]*", code)})
)
def test_a_path_of_the_guide_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"make ([a-z-]+)", GUIDE))))
def test_a_make_target_of_the_guide_exists(target: str) -> None:
    assert f"\n{target}:" in (ROOT / "Makefile").read_text()


def test_the_guide_is_short() -> None:
    assert len(GUIDE.splitlines()) <= 60


@pytest.mark.parametrize("room", ["finding", "asking"])
def test_no_file_on_the_way_of_a_turn_imports_more_than_twelve_others(room: str) -> None:
    files = sorted((ROOT / "cwm" / "services" / "turns" / room).glob("*.py"))
    counts = {
        file.name: sum(
            isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", "") != "__future__"
            for node in ast.parse(file.read_text()).body
        )
        for file in files
    }
    assert len(counts) > 5
    assert {name: count for name, count in counts.items() if count > 12} == {}
