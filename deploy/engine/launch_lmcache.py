"""Run LMCache's command line with its arguments taken from a JSON file: ``launch_lmcache.py ARGUMENTS.json``.

An adapter's JSON may hold the password of a Redis, and a process's arguments can be read by every user of
the machine; a file of mode 0600 can not. CWM's serde is registered first, under the name ``cwm-seal``.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import cwm_serde  # noqa: F401 - importing it registers the serde
from lmcache.cli.main import main
from load_origins import tell_origins
from shared_pool import populate
from valkey_login import name_credentials

if __name__ == "__main__":
    sys.argv = ["lmcache", *json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))]
    name_credentials()
    tell_origins()
    threading.Thread(target=populate, name="cwm-populate-l1", daemon=True).start()
    sys.exit(main())
