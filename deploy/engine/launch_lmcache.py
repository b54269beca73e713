"""Run LMCache's command line with its arguments taken from a JSON file: ``launch_lmcache.py ARGUMENTS.json``.

An adapter's JSON may hold the password of a Redis, and a process's arguments can be read by every user of
the machine; a file of mode 0600 can not.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lmcache.cli.main import main

if __name__ == "__main__":
    sys.argv = ["lmcache", *json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))]
    sys.exit(main())
