"""``cwm.yaml`` as text: what YAML reads as something else than was meant is refused, and no value is repeated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

from cwm.settings.errors import SettingsError

# What YAML quotes of the document: anything but a single character and its own words, as '<stream end>'. What stands
# between two that it quotes is its own, too.
_QUOTED: Final = re.compile(r"'(?!<| or '|, but got ')[^']{2,}'")


class _TwiceError(yaml.MarkedYAMLError):
    """A key stands twice in one mapping; its problem names the key."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, of which YAML would silently keep the last."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise _TwiceError(problem=f"'{key.value}' stands here twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return node


def read_document(raw: bytes, path: Path) -> dict[str, Any]:
    """The mapping that ``raw`` holds, empty for an empty file. Raises SettingsError."""
    try:
        document = yaml.load(raw.decode(), Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as broken:
        raise SettingsError(f"{path} cannot be read as YAML: {_why(broken)}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise SettingsError(f"{path} must hold groups of settings by name.")
    return document


def _why(broken: Exception) -> str:
    """YAML's own message shows the line, in which a secret may stand."""
    if isinstance(broken, yaml.MarkedYAMLError) and broken.problem_mark is not None:
        mark, problem = broken.problem_mark, broken.problem or "this makes no sense"
        if not isinstance(broken, _TwiceError):
            problem = _QUOTED.sub("'…'", problem)
        return f"line {mark.line + 1}, column {mark.column + 1}: {problem}."
    if isinstance(broken, UnicodeDecodeError):
        return f"byte {broken.start} is not UTF-8."
    if isinstance(broken, RecursionError):
        return "it is nested too deep."
    return "it holds a value or a character that YAML does not know."
