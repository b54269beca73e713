"""The browser that the tests of the console start, and how."""

from __future__ import annotations

import os
import shutil
from typing import Final

# Read here: tests run without any variable of CWM.
_CHROMIUM: Final = os.environ.get("CWM_TEST_CHROMIUM")
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)
MISSING: Final = "There is no Chromium on PATH and none in CWM_TEST_CHROMIUM; make test-console installs one."


def chromium() -> str | None:
    """The browser that CWM_TEST_CHROMIUM names, else the first one on PATH."""
    return next((found for name in (_CHROMIUM, *_NAMES) if name and (found := shutil.which(name))), None)
