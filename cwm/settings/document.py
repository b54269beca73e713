"""Parses ``cwm.yaml``. Ambiguous YAML is refused, and error messages never repeat a value."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

from cwm.settings.fields import SettingsError

# Text of the document that YAML quotes in a message: anything except a single character and YAML's own words, such as
# '<stream end>'. The text between two quotes is YAML's own, too.
_QUOTED: Final = re.compile(r"'(?!<| or '|, but got ')[^']{2,}'")


class _TwiceError(yaml.MarkedYAMLError):
    """A key occurs twice in one mapping. The problem names the key."""


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys. YAML would silently use the last one."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in keys:
                raise _TwiceError(problem=f"'{key.value}' stands here twice", problem_mark=key.start_mark)
            keys.add(key.value)
        return node


def read_document(raw: bytes, path: Path) -> dict[str, Any]:
    """Parse ``raw`` into a mapping; empty for an empty file. Raises SettingsError."""
    try:
        document = yaml.load(raw.decode(), Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as broken:
        raise SettingsError(f"{path} cannot be read as YAML: {_why(broken)}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise SettingsError(f"{path} must contain groups of settings by name.")
    return document


def _why(broken: Exception) -> str:
    """The problem without YAML's own message, which quotes the line: it may contain a secret."""
    if isinstance(broken, yaml.MarkedYAMLError) and broken.problem_mark is not None:
        mark, problem = broken.problem_mark, broken.problem or "this is not valid YAML"
        if not isinstance(broken, _TwiceError):
            problem = _QUOTED.sub("'…'", problem)
        return f"line {mark.line + 1}, column {mark.column + 1}: {problem}."
    if isinstance(broken, UnicodeDecodeError):
        return f"byte {broken.start} is not UTF-8."
    if isinstance(broken, RecursionError):
        return "it is nested too deeply."
    return "it contains a value or a character that is not valid YAML."
