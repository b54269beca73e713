"""Writes the configuration of clients into their own files, beside what is in them already."""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cwm.domain.clients.client import Access, Client, OwnFile
from cwm.settings import file_writes


class NotMergeableError(Exception):
    """A file that the configuration cannot be added to. The message says why."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a file in ``folder`` or below it is to contain; ``before`` is empty for a new one."""

    path: Path
    before: str
    after: str
    folder: Path

    def difference(self) -> str:
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            f"{self.path} (now)",
            f"{self.path}",
        )
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)

    def write(self) -> None:
        """Replace the file whole, with the permissions that it has. Raises NotMergeableError for a link, OSError."""
        with _without_links():
            file_writes.write_text(self.path, self.after, self.folder)


def changes(client: Client, access: Access, folder: Path) -> list[Change]:
    """What the client's files would become; those of its project are in ``folder``. Raises NotMergeableError, OSError."""
    files = [_change(file, [text(access) for text in file.texts], folder) for file in client.files]
    return [change for change in files if change.before != change.after]


def _change(file: OwnFile, texts: Sequence[str], folder: Path) -> Change:
    if not file.home:
        path = folder / file.path
    else:
        # The user's own folder, where a link leads to what the user keeps elsewhere.
        path = (Path(os.environ.get(file.home_variable) or Path.home() / file.home) / file.path).resolve()
        folder = path.parent
    before = _text(path, folder)
    after = (_toml if path.suffix == ".toml" else _json)(path, before, texts)
    return Change(path, before, after, folder)


def _toml(path: Path, before: str, texts: Sequence[str]) -> str:
    """``before`` with the lines and tables that it has not. Lines before all tables stay there."""
    tops, tables = [], []
    for text in texts:
        top, table = re.split(r"^(?=\[)", text, maxsplit=1, flags=re.MULTILINE)
        tops.append(top.rstrip("\n"))
        tables.append(table)
    top = "".join(f"{lines}\n" for lines in tops if lines)
    try:
        now = tomllib.loads(before)
        additions = tomllib.loads("\n".join([top, *tables]))
    except tomllib.TOMLDecodeError as damaged:
        raise NotMergeableError(f"{path} is not valid TOML: {damaged}.") from None
    _require_no_other(path, now, additions, "")
    missing_top = "".join(line for line in top.splitlines(True) if line.split(" = ")[0] not in now)
    missing_tables = [each for each in tables if each and not _has(now, tomllib.loads(each))]
    parts = [missing_top + before.lstrip("\n") if missing_top else before, *missing_tables]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts if part)


def _json(path: Path, before: str, texts: Sequence[str]) -> str:
    own = {name: value for text in texts for name, value in json.loads(text).items()}
    try:
        now = json.loads(before) if before.strip() else {}
    except ValueError as damaged:
        raise NotMergeableError(f"{path} is not plain JSON: {damaged}. Add the lines by hand.") from None
    if not isinstance(now, dict):
        raise NotMergeableError(f"{path} holds no JSON object. Add the lines by hand.")
    return before if _has(now, own) else json.dumps(_with(now, own), indent=2, ensure_ascii=False) + "\n"


def _with(now: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(now)
    for name, value in own.items():
        before = merged.get(name)
        both = isinstance(before, dict) and isinstance(value, dict)
        merged[name] = _with(before or {}, value) if both else value
    return merged


def _has(now: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    return all(
        _has(now[name], value)
        if isinstance(value, dict) and isinstance(now.get(name), dict)
        else name in now and now[name] == value
        for name, value in own.items()
    )


def _require_no_other(path: Path, now: Mapping[str, Any], additions: Mapping[str, Any], place: str) -> None:
    """TOML is added to, not changed: what is there already must be the same."""
    for name, value in additions.items():
        where = f"{place}{name}"
        if isinstance(value, dict) and isinstance(now.get(name), dict):
            if name == "cwm" and not _has(now[name], value):
                raise NotMergeableError(f"{path} has another [{where}] already. Change it by hand.")
            _require_no_other(path, now[name], value, f"{where}.")
        elif name in now and now[name] != value:
            raise NotMergeableError(f"{path} has '{where} = {now[name]!r}' already. Change it by hand.")


def _text(path: Path, folder: Path) -> str:
    try:
        with _without_links():
            return file_writes.read_text(path, folder)
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise NotMergeableError(f"{path} is not UTF-8 text. Add the lines by hand.") from None


@contextmanager
def _without_links() -> Iterator[None]:
    try:
        yield
    except file_writes.LinkError as link:
        raise NotMergeableError(
            f"{link.filename} is a link, and CWM follows none in a folder that others may have made. "
            "Put a file or folder of your own in its place, or add the lines by hand."
        ) from None
