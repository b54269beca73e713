"""compose.yaml as it is shipped, in a project of its own that leaves nothing behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2

ROOT: Final = Path(__file__).parents[2]
HERE: Final = Path(__file__).parent
IMAGE: Final = "cwm:test"
ENGINE_IMAGE: Final = "cwm-engine:test"
_STAND_INS: Final = {
    "CWM_PYTHON_IMAGE": "cwm-stand-in/python",
    "CWM_POSTGRES_IMAGE": "cwm-stand-in/postgres",
    "CWM_VALKEY_IMAGE": "cwm-stand-in/valkey",
    "CWM_PROXY_IMAGE": "cwm-stand-in/haproxy",
}
_COMMAND_SECONDS: Final = 1200
_HEALTHY_SECONDS: Final = 300


class CommandError(Exception):
    """A command of Docker failed; the message is what it said."""


def docker(*arguments: str, environ: Mapping[str, str] | None = None, ok: bool = True) -> str:
    """What the command prints. Raises CommandError where it fails, unless not ``ok`` either way."""
    done = subprocess.run(
        ["docker", *arguments],
        env={**os.environ, **(environ or {})},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_COMMAND_SECONDS,
        check=False,
    )
    if ok and done.returncode != 0:
        raise CommandError(
            f"docker {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout + ("" if ok else done.stderr)


def images() -> dict[str, str]:
    """The images that compose.yaml is given: stand-ins, or with CWM_TEST_IMAGES=official the ones that it names."""
    return {} if os.environ.get("CWM_TEST_IMAGES") == "official" else _STAND_INS


@dataclass(frozen=True, slots=True)
class Container:
    id: str
    name: str
    state: Mapping[str, Any] = field(repr=False)

    @property
    def running(self) -> bool:
        return bool(self.state["State"]["Running"])

    @property
    def host_config(self) -> Mapping[str, Any]:
        return dict(self.state["HostConfig"])

    @property
    def addresses(self) -> set[str]:
        return {network["IPAddress"] for network in self.state["NetworkSettings"]["Networks"].values()}

    def python(self, code: str) -> str:
        """What ``code`` prints inside."""
        return docker("exec", self.id, "/opt/cwm/bin/python", "-c", code).strip()

    def kill(self, signal: str) -> None:
        docker("kill", "--signal", signal, self.id)

    def exit_code(self) -> int:
        """Waits for its end."""
        return int(docker("wait", self.id))


@dataclass(frozen=True, slots=True)
class Stack:
    """A compose project. ``port`` is the proxy's, ``upstream_port`` the held server's, both on loopback."""

    project: str
    environ: Mapping[str, str]
    files: Sequence[Path]
    port: int
    upstream_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def compose(self, *arguments: str, ok: bool = True) -> str:
        files = [part for file in self.files for part in ("--file", str(file))]
        line = [
            "compose",
            "--project-name",
            self.project,
            "--project-directory",
            str(ROOT),
            *files,
            *arguments,
        ]
        return docker(*line, environ=self.environ, ok=ok)

    def up(self, *services: str) -> None:
        """Raises CommandError with what the containers said when not all become healthy."""
        try:
            self.compose("up", "--detach", "--wait", "--wait-timeout", str(_HEALTHY_SECONDS), *services)
        except CommandError as failed:
            raise CommandError(f"{failed}\n{self.compose('logs', '--tail', '50', ok=False)}") from None

    def containers(self, service: str) -> list[Container]:
        """In the order of their numbers, the stopped ones included."""
        ids = self.compose("ps", "--all", "--quiet", service).split()
        found = json.loads(docker("inspect", *ids)) if ids else []
        listed = [Container(each["Id"], each["Name"].removeprefix("/"), each) for each in found]
        return sorted(listed, key=lambda container: container.name)

    def replicas(self) -> list[Container]:
        return [container for container in self.containers("gateway") if container.running]

    def go_on(self) -> None:
        """Let the tool that is held end."""
        httpx2.post(f"http://127.0.0.1:{self.upstream_port}/go-on", trust_env=False).raise_for_status()


@contextmanager
def stack(folder: Path, **more: str) -> Iterator[Stack]:
    """Up and healthy for as long as the block lasts; ``more`` are further variables of compose.yaml."""
    secrets = folder / "secrets"
    subprocess.run(
        [ROOT / "deploy" / "compose" / "secrets.sh", secrets], check=True, stdout=subprocess.DEVNULL
    )
    port, upstream_port = free_port(), free_port()
    environ = {
        **images(),
        "CWM_IMAGE": IMAGE,
        "CWM_TEST_ENGINE_IMAGE": ENGINE_IMAGE,
        "CWM_SECRETS": str(secrets),
        "CWM_CONFIG_FOLDER": str(HERE / "config"),
        "CWM_PUBLISHED_PORT": str(port),
        "CWM_TEST_UPSTREAM_PORT": str(upstream_port),
        **more,
    }
    project = f"cwm-test-{os.getpid()}"
    files = [ROOT / "compose.yaml", HERE / "compose.test.yaml"]
    running = Stack(project, environ, files, port, upstream_port)
    try:
        running.up()
        yield running
    except BaseException:
        sys.stderr.write(running.compose("logs", "--tail", "100", ok=False))
        raise
    finally:
        running.compose("down", "--volumes", "--remove-orphans", "--timeout", "5", ok=False)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
