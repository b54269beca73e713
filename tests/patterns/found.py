"""Every regular expression of a package: where it is written, its text, and how it is used."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

_CALLS: Final = frozenset(
    {"compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}
)
ANYWHERE: Final = frozenset({"search", "sub", "subn", "split", "findall", "finditer"})
_ALL: Final = ANYWHERE | {"match", "fullmatch"}


@dataclass(frozen=True)
class Found:
    """A pattern. ``place``: its module and the name that holds it, or the function that uses it. ``text`` is None where it is built of a
    caller's values. ``uses``: the functions of ``re`` that it is given to; all of them where the code does not say.
    """

    place: str
    line: int
    text: str | bytes | None
    flags: int
    uses: frozenset[str]


def modules_of(package: ModuleType) -> list[ModuleType]:
    names = (info.name for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))
    return [importlib.import_module(name) for name in names if not name.endswith("__main__")]


def patterns_of(modules: list[ModuleType], values: Mapping[str, Mapping[str, Any]]) -> list[Found]:
    """The patterns in the modules' code. ``values``: by place, examples of what a function builds its pattern of."""
    trees = {module: ast.parse(_source(module)) for module in modules}
    uses = _uses(trees)
    return [found for module, tree in trees.items() for found in _patterns(module, tree, uses, values)]


def compiled_in(modules: list[ModuleType]) -> dict[str | bytes, str]:
    """The texts of the patterns that the modules' globals hold, each with the name of such a module."""
    return {
        pattern.pattern: module.__name__
        for module in modules
        for name, value in vars(module).items()
        if not name.startswith("__")
        for pattern in _compiled(value)
    }


def _source(module: ModuleType) -> str:
    assert module.__file__ is not None
    with open(module.__file__, encoding="utf-8") as file:  # noqa: PTH123 - a module's own path
        return file.read()


def _compiled(value: Any) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _compiled(inner)
    elif isinstance(value, tuple | list | set | frozenset):
        for inner in value:
            yield from _compiled(inner)


def _uses(trees: Mapping[ModuleType, ast.Module]) -> Mapping[tuple[str, str], set[str]]:
    """For each global of each module the attributes that code takes of it; ``""`` where it uses the global itself."""
    uses: dict[tuple[str, str], set[str]] = defaultdict(set)
    for module, tree in trees.items():
        origins = {
            alias.asname or alias.name: (node.module or "", alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        taken: set[int] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                taken.add(id(node.value))
                uses[origins.get(node.value.id, (module.__name__, node.value.id))].add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in taken:
                uses[origins.get(node.id, (module.__name__, node.id))].add("")
    return uses


def _patterns(
    module: ModuleType,
    tree: ast.Module,
    uses: Mapping[tuple[str, str], set[str]],
    values: Mapping[str, Mapping[str, Any]],
) -> Iterator[Found]:
    for owner, node in _walk(tree, ""):
        if isinstance(node, ast.ImportFrom) and node.module == "re":
            raise AssertionError(
                f"{module.__name__}: import re, and write re.compile: so that this test sees it"
            )
        if not _is_call(node):
            continue
        assert isinstance(node, ast.Call)
        assert isinstance(node.func, ast.Attribute)
        place = f"{module.__name__}:{owner}"
        text, flags = _arguments(node, {**vars(module), **values.get(place, {})})
        used = {node.func.attr}
        if node.func.attr == "compile":
            used = uses.get((module.__name__, owner), set()) - {"pattern", "flags"}
            if not used or not used <= _ALL:
                used = set(_ALL)
        yield Found(place, node.lineno, text, flags, frozenset(used))


def _walk(node: ast.AST, owner: str) -> Iterator[tuple[str, ast.AST]]:
    """The nodes, each with the name of the global or the function that it belongs to."""
    for inner in ast.iter_child_nodes(node):
        name = owner
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{owner}.{inner.name}" if owner else inner.name
        elif not owner and isinstance(inner, ast.Assign | ast.AnnAssign):
            target = inner.targets[0] if isinstance(inner, ast.Assign) else inner.target
            name = target.id if isinstance(target, ast.Name) else owner
        yield name, inner
        yield from _walk(inner, name)


def _is_call(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in _CALLS
    )


def _arguments(call: ast.Call, names: dict[str, Any]) -> tuple[str | bytes | None, int]:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    pattern = call.args[0] if call.args else given["pattern"]
    flags = given.get("flags")
    at = {"compile": 1, "match": 2, "fullmatch": 2, "search": 2, "findall": 2, "finditer": 2}.get(
        call.func.attr if isinstance(call.func, ast.Attribute) else "", 9
    )
    if flags is None and len(call.args) > at:
        flags = call.args[at]
    text = _value(pattern, names)
    value = 0 if flags is None else _value(flags, names)
    if not isinstance(text, str | bytes) or value is None:
        return None, 0
    return text, int(value)


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    """The value of an expression of these names; None if it has others."""
    try:
        return eval(compile(ast.Expression(node), "<pattern>", "eval"), dict(names))
    except NameError:
        return None
