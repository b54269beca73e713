"""Runs LMCache's command line with arguments from a JSON file: ``launch_lmcache.py ARGUMENTS.json``.

An adapter's JSON may contain a Redis password. Every user of the machine can read a process's arguments, but
not a file of mode 0600. First registers CWM's serde, ``cwm-seal``.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import cwm_serde  # noqa: F401 - importing it registers the serde
from lmcache.cli.main import main
from load_origins import report_origins
from shared_pool import populate
from valkey_login import name_credentials

if __name__ == "__main__":
    sys.argv = ["lmcache", *json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))]
    name_credentials()
    report_origins()
    threading.Thread(target=populate, name="cwm-populate-l1", daemon=True).start()
    sys.exit(main())
