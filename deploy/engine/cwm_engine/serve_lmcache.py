"""LMCache's command line with CWM's serde ``cwm-seal``: ``python -m cwm_engine.serve_lmcache server --l2-adapter JSON ...``.

An adapter's JSON may contain the password of a Redis, and every user of the machine can read a process's arguments. So a
string ``@/run/secrets/name`` in it is replaced by that file's content; or a single argument names a JSON file with all
arguments, which only its owner can read.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_ADAPTER = "--l2-adapter"
_FROM_FILE = "@/"


def arguments_of(argv: Sequence[str]) -> list[str]:
    """LMCache's arguments, with secrets filled in. Raises OSError if a file cannot be read."""
    if len(argv) == 1 and argv[0].endswith(".json"):
        return list(json.loads(Path(argv[0]).read_text(encoding="utf-8")))
    after_adapter = [False, *(argument == _ADAPTER for argument in argv)]
    return [
        json.dumps(_with_secrets(json.loads(argument))) if is_adapter else argument
        for argument, is_adapter in zip(argv, after_adapter, strict=False)
    ]


def _with_secrets(adapter: dict[str, Any]) -> dict[str, Any]:
    return {name: _secret(value) for name, value in adapter.items()}


def _secret(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_FROM_FILE):
        return Path(value[1:]).read_text(encoding="utf-8").strip()
    return value


def main() -> None:
    """Run LMCache with the arguments of this process."""
    from lmcache.cli.main import main as lmcache

    import cwm_engine.serde  # noqa: F401 - importing it registers the serde
    from cwm_engine.load_origins import report_origins
    from cwm_engine.refill import take_refills
    from cwm_engine.shared_pool import populate
    from cwm_engine.valkey_login import name_credentials

    sys.argv = ["lmcache", *arguments_of(sys.argv[1:])]
    name_credentials()
    report_origins()
    take_refills()
    threading.Thread(target=populate, name="cwm-populate-l1", daemon=True).start()
    sys.exit(lmcache())


if __name__ == "__main__":
    main()
