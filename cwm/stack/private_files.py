"""Files that only this user may read: the keys that seal stored KV, and arguments that contain a password."""

from __future__ import annotations

import json
import os
import re
import secrets
from pathlib import Path

from cwm.stack.errors import StackError

_KEY = re.compile(r"\s*[0-9a-fA-F]{64}\s*")


def keyring(storage_path: Path) -> Path:
    """The file with the keys that seal all stored KV, mode 0600; created once, with one key.

    Without it the stored KV is lost; the windows are not. The file is written whole or not at all.
    """
    path = storage_path / "kv.keys"
    if not path.exists():
        fresh = path.with_name(f".kv.keys.{os.getpid()}")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(
                f"# CWM seals with the first key and opens with any of them.\n{secrets.token_hex(32)}\n"
            )
        fresh.rename(path)
    if not any(_KEY.fullmatch(line) for line in path.read_text(errors="replace").splitlines()):
        raise StackError(
            f"{path} is damaged: a line of 64 hexadecimal digits is missing. Remove it to start an empty store."
        )
    return path


def write_private_json(path: Path, document: object) -> None:
    """Write JSON that only this user can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(document, file)
