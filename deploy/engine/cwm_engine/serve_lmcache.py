"""LMCache's command line for containers: ``serve_lmcache.py server --l2-adapter JSON ...``.

A string ``@/run/secrets/name`` in an adapter's JSON is replaced by that file's content, so that the arguments contain
no password. First registers CWM's serde, ``cwm-seal``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_ADAPTER = "--l2-adapter"
_FROM_FILE = "@/"


def filled(arguments: Sequence[str]) -> list[str]:
    """``arguments`` with secrets filled in. Raises OSError if a file cannot be read."""
    after_adapter = [False, *(argument == _ADAPTER for argument in arguments)]
    return [
        json.dumps(_with_secrets(json.loads(argument))) if is_adapter else argument
        for argument, is_adapter in zip(arguments, after_adapter, strict=False)
    ]


def _with_secrets(adapter: dict[str, Any]) -> dict[str, Any]:
    return {name: _secret(value) for name, value in adapter.items()}


def _secret(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_FROM_FILE):
        return Path(value[1:]).read_text(encoding="utf-8").strip()
    return value


if __name__ == "__main__":
    import cwm_serde  # noqa: F401 - importing it registers the serde
    from lmcache.cli.main import main
    from load_origins import report_origins
    from valkey_login import name_credentials

    sys.argv = ["lmcache", *filled(sys.argv[1:])]
    name_credentials()
    report_origins()
    sys.exit(main())
