"""A Docker that is there, the images, and one running stack."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.images.stack import HERE, IMAGE, ROOT, CommandError, Stack, docker, images, stack

_DAEMON_SECONDS = 30


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The machine's own Docker, or one that runs for as long as the tests do."""
    if _answers():
        yield
        return
    program = shutil.which("dockerd")
    if program is None:
        pytest.fail("There is no Docker: `make test-images` installs it on Debian, as root.")
    with (tmp_path_factory.mktemp("docker") / "log").open("wb") as log:
        process = subprocess.Popen([program], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + _DAEMON_SECONDS
            while not _answers():
                if process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"dockerd does not start:\n{Path(log.name).read_text()[-2000:]}")
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            process.wait(60)


def _answers() -> bool:
    try:
        docker("info")
    except CommandError:
        return False
    return True


@pytest.fixture(scope="session")
def image(daemon: None) -> str:
    """The gateway's image, built from this checkout."""
    if images():
        subprocess.run(["sh", HERE / "stand_ins.sh"], check=True, timeout=900)
    arguments = [f"--build-arg=PYTHON_IMAGE={base}"] if (base := images().get("CWM_PYTHON_IMAGE")) else []
    docker("buildx", "build", "--load", "--tag", IMAGE, *arguments, str(ROOT))
    return IMAGE


@pytest.fixture(scope="module")
def running(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with stack(tmp_path_factory.mktemp("stack")) as up:
        yield up
