"""Files that only this user may read: the keys that seal stored KV, and arguments that contain a password."""

from __future__ import annotations

import json
import re
import secrets
from pathlib import Path

from cwm.settings import file_writes
from cwm.stack.errors import StackError

_KEY = re.compile(r"\s*[0-9a-fA-F]{64}\s*")


def keyring(storage_path: Path) -> Path:
    """The file with the keys that seal all stored KV, mode 0600; created once, with one key.

    Without it the stored KV is lost; the windows are not. The file is written whole or not at all.
    """
    path = storage_path / "kv.keys"
    if not path.exists():
        key = f"# CWM seals with the first key and opens with any of them.\n{secrets.token_hex(32)}\n"
        file_writes.write_text(path, key, mode=0o600)
    if not any(_KEY.fullmatch(line) for line in path.read_text(errors="replace").splitlines()):
        raise StackError(
            f"{path} is damaged: a line of 64 hexadecimal digits is missing. Remove it to start an empty store."
        )
    return path


def write_private_json(path: Path, document: object) -> None:
    """Write JSON that only this user can read."""
    path.unlink(missing_ok=True)
    file_writes.write_text(path, json.dumps(document), mode=0o600)
