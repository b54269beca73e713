"""Generates ``docs/settings.md`` from the code: ``python -m docs.generate.settings``."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo

from cwm.settings import ENV_PREFIX, GROUPS
from cwm.settings.groups import is_secret


def page() -> str:
    """The whole page as Markdown."""
    sections = (
        f"## {title}\n\n{_paragraph(group.__doc__)}\n\n{_table(group.model_fields)}"
        for title, group in GROUPS.items()
    )
    introduction = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    return "\n".join([introduction, *sections])


def _paragraph(docstring: str | None) -> str:
    return " ".join((docstring or "").split()).replace("``", "`")


def _table(fields: dict[str, FieldInfo]) -> str:
    head = "| variable | in cwm.yaml | default | meaning |\n| --- | --- | --- | --- |\n"
    return head + "".join(_row(name, spec) for name, spec in fields.items())


def _row(name: str, spec: FieldInfo) -> str:
    secret = " *Secret.*" if is_secret(spec) else ""
    meaning = f"{spec.description}{_choices(spec.annotation)}{secret}".replace("|", "\\|")
    return f"| `{ENV_PREFIX}{name.upper()}` | `{name}` | {default(spec.default)} | {meaning} |\n"


def default(value: Any) -> str:
    if value is None or (isinstance(value, str | tuple) and not value):
        return "unset"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, Enum):
        return f"`{value.value}`"
    return f"`{value}`"


def _choices(annotation: Any) -> str:
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        values = [str(member.value) for member in annotation]
    else:
        values = [value for value in get_args(annotation) if isinstance(value, str)]
    return f" One of {', '.join(f'`{value}`' for value in values)}." if values else ""


if __name__ == "__main__":
    print(page(), end="")
