"""Writes the configuration of clients into their own files, beside what is in them already."""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cwm.cli.connect import clients
from cwm.cli.connect.clients import Access
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


def changes(name: str, access: Access, *, llm: bool, mcp: bool, folder: Path) -> list[Change]:
    """What the files of a client would become, for the faces that are to be connected. Raises NotMergeableError, OSError."""
    return [change for change in _WRITERS[name](access, llm, mcp, folder) if change.before != change.after]


def _claude(access: Access, llm: bool, mcp: bool, folder: Path) -> list[Change]:
    files = []
    if llm:
        settings = clients.claude_settings(access)
        files.append(_merged(folder / ".claude" / "settings.local.json", settings, folder))
    if mcp:
        files.append(_merged(folder / ".mcp.json", clients.claude_servers(access), folder))
    return files


def _opencode(access: Access, llm: bool, mcp: bool, folder: Path) -> list[Change]:
    own = (clients.opencode_llm(access) if llm else {}) | (clients.opencode_servers(access) if mcp else {})
    return [_merged(folder / "opencode.json", own, folder)]


def _codex(access: Access, llm: bool, mcp: bool, folder: Path) -> list[Change]:  # noqa: ARG001
    # The user's own folder, where a link leads to what the user keeps elsewhere.
    path = (Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex") / "config.toml").resolve()
    before = _text(path, path.parent)
    top, table = clients.codex_llm(access) if llm else ("", "")
    tables = [table, clients.codex_servers(access) if mcp else ""]
    try:
        now = tomllib.loads(before)
        additions = tomllib.loads("\n".join([top, *tables]))
    except tomllib.TOMLDecodeError as damaged:
        raise NotMergeableError(f"{path} is not valid TOML: {damaged}.") from None
    _require_no_other(path, now, additions, "")
    missing_top = "".join(line for line in top.splitlines(True) if line.split(" = ")[0] not in now)
    missing_tables = [each for each in tables if each and not _has(now, tomllib.loads(each))]
    parts = [missing_top + before.lstrip("\n") if missing_top else before, *missing_tables]
    return [Change(path, before, "\n".join(part.rstrip("\n") + "\n" for part in parts if part), path.parent)]


_WRITERS: Final[Mapping[str, Callable[[Access, bool, bool, Path], list[Change]]]] = {
    "claude-code": _claude,
    "codex": _codex,
    "opencode": _opencode,
}
WRITABLE: Final = frozenset(_WRITERS)


def _merged(path: Path, own: Mapping[str, Any], folder: Path) -> Change:
    before = _text(path, folder)
    try:
        now = json.loads(before) if before.strip() else {}
    except ValueError as damaged:
        raise NotMergeableError(f"{path} is not plain JSON: {damaged}. Add the lines by hand.") from None
    if not isinstance(now, dict):
        raise NotMergeableError(f"{path} holds no JSON object. Add the lines by hand.")
    after = before if _has(now, own) else json.dumps(_with(now, own), indent=2, ensure_ascii=False) + "\n"
    return Change(path, before, after, folder)


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
