"""Generates ``docs/settings.md`` from the code: ``python -m cwm.cli.settings_table``."""

from __future__ import annotations

from enum import Enum
from typing import Any, get_args

from pydantic.fields import FieldInfo

from cwm.settings import CONFIG_ENV, ENV_PREFIX, GROUPS
from cwm.settings.groups import is_secret

_INTRODUCTION = f"""\
# Settings

A value comes from its environment variable, else from `cwm.yaml` in the working directory (`{CONFIG_ENV}` names
another file), else from its default. `cwm doctor` shows the values in force and where they came from.
In `cwm.yaml`, each group below is a key that contains its settings by name:

```yaml
http:
  port: 8700
engine:
  vllm_url: http://gpu-1:8000
```

Three more keys exist only in the file: `upstreams`, the MCP servers that CWM serves under its own URL, see
[Upstream servers](upstreams.md), and `results` and `tools`, how much of a tool's result is delivered, see
[Result budgets](result-budgets.md). Changes of these three, of the limits on requests, streams and tokens, of the memory
for shared context and of the log level take effect while the gateway runs; all other changes at its next start.

A secret may be in a file: `CWM_DATABASE_URL_FILE` names a file with the value of `CWM_DATABASE_URL`, and likewise for
every variable marked *secret*. Setting both is an error.

This page is generated from the code by `python -m cwm.cli.settings_table > docs/settings.md`.
"""


def page() -> str:
    """The whole page as Markdown."""
    sections = (
        f"## {title}\n\n{_paragraph(group.__doc__)}\n\n{_table(group.model_fields)}"
        for title, group in GROUPS.items()
    )
    return "\n".join([_INTRODUCTION, *sections])


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
