"""``cwm demo`` end to end: its own engine, SIGKILL, and the verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cwm.domain.prefix import restorable_tokens, stored_chunks
from tests.live.engine import engine_home

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]


def demo(folder: Path, *options: str) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    run = subprocess.run(
        [sys.executable, "-m", "cwm", "demo", "--model", "tiny", "--json", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**_environment(), "TMPDIR": str(folder)},
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout), run


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CWM_")}
    return {**kept, "CWM_HOME": str(engine_home())}


def test_after_sigkill_of_the_whole_engine_the_story_is_true(tmp_path: Path) -> None:
    told, run = demo(tmp_path, "--tokens", "1200")

    assert told["identical"] is True
    assert told["untrue"] == []
    assert told["reference"]["token_ids"] == told["continuation"]["token_ids"] != []
    assert set(told["restarted"]) >= {"vllm", "lmcache"}
    assert told["durable"] is True
    assert told["chunks"] == stored_chunks(told["tokens"], told["chunk_size"])
    assert told["tokens_restored"] == restorable_tokens(told["tokens"], told["chunk_size"])
    assert told["tokens_restored"] + told["tokens_recomputed"] == told["tokens"]
    assert told["tiers"] == {"disk": told["tokens_restored"]}, run.stderr
    assert told["continuation"]["cached_tokens"] == told["chunks"] * told["chunk_size"]
    assert told["cold_prefill_ms"] > 0
    assert "SIGKILL: vllm and lmcache" in run.stderr
    assert list(tmp_path.glob("cwm-demo-*")) == [], "its folder is gone when it ends"
