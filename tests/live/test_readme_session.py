"""The shell session of the README, run as it stands but for the port and the model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.conftest import LiveGateway

pytestmark = pytest.mark.live

ROOT = Path(__file__).parent.parent.parent


def test_the_commands_of_the_readme_do_what_it_says(gateway: LiveGateway) -> None:
    readme = (ROOT / "README.md").read_text()
    block = re.search(r"name the session:\n\n((?: {4}.*\n|\n)+)", readme)
    assert block is not None
    script = (
        block[1]
        .replace("http://127.0.0.1:8700", gateway.url)
        .replace("smollm2-135m", gateway.model)
        .replace(".venv/bin/cwm", f"{sys.executable} -m cwm")
    )
    told = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT,
        env={**os.environ, "CWM_PORT": gateway.url.rsplit(":", 1)[1]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert '"object":"chat.completion"' in told.stdout
    assert "keep-this" in told.stdout
    assert "thaw_keep-this_" in told.stdout
