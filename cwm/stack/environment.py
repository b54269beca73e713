"""The engine's own Python environment: installed once per set of pins, and used only when complete."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cwm import shipped
from cwm.stack.errors import StackError
from cwm.stack.locks import locked
from cwm.stack.tool import ToolFailedError, run_tool

Device = Literal["cpu", "cuda"]
Report = Callable[[str], None]

GIB = 1024**3
_MARKER = "cwm-complete.json"
_PROGRESS_SECONDS = 3.0
_NEEDS_GIB: dict[Device, float] = {"cpu": 4.5, "cuda": 14.0}


def tolerant(report: Report) -> Report:
    """``report`` without its OSErrors: a closed terminal or a full disk behind it stops nothing."""

    def report_or_ignore(line: str) -> None:
        with suppress(OSError):
            report(line)

    return report_or_ignore


@dataclass(frozen=True, slots=True)
class EngineEnvironment:
    """A virtual environment that holds vLLM and LMCache."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def complete(self) -> bool:
        return (self.folder / _MARKER).is_file() and (self.folder / "bin" / "python").exists()


@dataclass(frozen=True, slots=True)
class Pins:
    """A requirements file and the device that it is for."""

    file: Path
    device: Device

    @classmethod
    def for_device(cls, device: Device) -> Pins:
        name = "requirements-cpu.txt" if device == "cpu" else "requirements-gpu.txt"
        return cls(shipped.folder("engine") / name, device)

    @property
    def short_hash(self) -> str:
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        return hashlib.sha256(python.encode() + self.file.read_bytes()).hexdigest()[:10]

    @property
    def total(self) -> int | None:
        """Number of packages; None if pip resolves the dependencies itself."""
        lines = self.file.read_text(encoding="utf-8").splitlines()
        return sum(bool(line.strip()) and line[0] != "#" for line in lines) if self.exact else None

    @property
    def exact(self) -> bool:
        return self.device == "cpu"


async def prepare_environment(
    home: Path, pins: Pins, report: Report, withheld: Collection[str] = ()
) -> EngineEnvironment:
    """The environment for ``pins`` under ``home``, installed now if it does not exist. Raises StackError.

    The installer does not get the ``withheld`` environment variables.
    An environment is complete when it has its marker, which is written last: without one it is installed anew.
    A lock makes a second process wait while the first one installs.
    """
    folder = home / "engine" / f"{pins.device}-{pins.short_hash}"
    environment = EngineEnvironment(folder)
    if environment.complete:
        return environment
    async with locked(
        folder.with_suffix(".lock"),
        lambda pid: report(f"waiting for process {pid}, which is installing the engine"),
    ):
        if not environment.complete:
            await _install(environment, pins, report, withheld)
    return environment


async def _install(
    environment: EngineEnvironment, pins: Pins, report: Report, withheld: Collection[str]
) -> None:
    folder = environment.folder
    require_space(folder.parent, _NEEDS_GIB[pins.device], "the engine environment")
    if folder.exists():
        report("removing an engine environment whose installation was interrupted")
        await asyncio.to_thread(shutil.rmtree, folder)
    log = folder.with_suffix(".log")
    log.unlink(missing_ok=True)
    report(f"installing the engine into {folder} (once; pip's output is in {log})")
    await _make_venv(folder, log, withheld)
    await _pip_install(environment, pins, log, report, withheld)
    (folder / _MARKER).write_text(json.dumps({"requirements": pins.file.name}), encoding="utf-8")
    report("the engine is installed")


async def _make_venv(folder: Path, log: Path, withheld: Collection[str]) -> None:
    try:
        await run_tool([sys.executable, "-I", "-m", "venv", str(folder)], log, withheld=withheld)
    except ToolFailedError as error:
        raise StackError(
            "Python cannot make a virtual environment for the engine: "
            f"{' '.join(error.lines[-3:]) or error}. On Debian and Ubuntu install python3-venv."
        ) from error


async def _pip_install(
    environment: EngineEnvironment, pins: Pins, log: Path, report: Report, withheld: Collection[str]
) -> None:
    progress = _Progress(environment.folder, pins.total, report)
    argv = [environment.python, "-I", "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    argv += ["--disable-pip-version-check", *(["--no-deps"] if pins.exact else []), "-r", str(pins.file)]
    try:
        async with progress.reporting():
            await run_tool(argv, log, progress.read, withheld=withheld)
    except ToolFailedError as error:
        raise StackError(_why_pip_failed(error, log)) from error


def _why_pip_failed(error: ToolFailedError, log: Path) -> str:
    # pip words this differently for a package with a constraint: that is the third pattern.
    if error.matching(
        r"(No matching distribution|satisfies the requirement|Cannot install).*torch==\S*\+cpu"
    ):
        return (
            "pip finds no CPU build of PyTorch (torch …+cpu): it is not on PyPI. Give pip PyTorch's CPU "
            "wheel index (PIP_EXTRA_INDEX_URL, or extra-index-url in pip.conf), or a folder with the "
            "wheel (PIP_FIND_LINKS); check that its constraints (PIP_CONSTRAINT, or constraint in pip.conf) allow it; "
            "then start again."
        )
    errors = error.matching("^ERROR") or error.lines[-3:]
    return f"pip could not install the engine: {' '.join(errors)} (its whole output is in {log})"


class _Progress:
    """Reads pip's output and reports progress every few seconds."""

    def __init__(self, folder: Path, total: int | None, report: Report) -> None:
        self._folder, self._total, self._report = folder, total, report
        self._package_count = 0
        self._installing = False
        self._preinstalled = set(self._records())  # pip itself
        self._sizes: dict[Path, int] = {}

    def read(self, line: str) -> None:
        if line.startswith(("Collecting ", "Processing ")):
            self._package_count += 1
        elif line.startswith("Installing collected packages"):
            self._installing = True

    @asynccontextmanager
    async def reporting(self) -> AsyncIterator[None]:
        """Report progress while the block runs."""
        reporter = asyncio.create_task(self._report_progress())
        try:
            yield
        finally:
            reporter.cancel()
            await asyncio.wait({reporter})

    async def _report_progress(self) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS)
            self._report(await asyncio.to_thread(self._line) if self._installing else self._fetching())

    def _fetching(self) -> str:
        return f"fetching the engine: {self._package_count}{self._of} packages"

    def _line(self) -> str:
        for record in self._records():
            if record not in self._sizes and record not in self._preinstalled:
                self._sizes[record] = _recorded_bytes(record)
        size = sum(self._sizes.values()) / GIB
        return f"installing the engine: {len(self._sizes)}{self._of} packages, {size:.1f} GiB"

    def _records(self) -> Iterator[Path]:
        return self._folder.glob("lib/python*/site-packages/*.dist-info/RECORD")

    @property
    def _of(self) -> str:
        return f" of {self._total}" if self._total else ""


def _recorded_bytes(record: Path) -> int:
    """Total size in bytes of the files in a wheel's RECORD, whose lines end in ``,<hash>,<size>``."""
    lines = record.read_text(encoding="utf-8", errors="replace").splitlines()
    return sum(int(size) for size in (line.rpartition(",")[2] for line in lines) if size.isdigit())


def require_space(folder: Path, gib: float, what: str) -> None:
    """Raise StackError if ``folder``'s file system has less than ``gib`` GiB free."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free / GIB
    if free < gib:
        raise StackError(f"{what} needs {gib:.1f} GiB in {folder}, which has {free:.1f} GiB free.")
