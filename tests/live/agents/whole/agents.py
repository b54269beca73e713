"""Agents that do a whole task: how each is connected, in the words of `cwm connect`, and the calls that its task takes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final

from tests.live.agents import programs
from tests.live.agents.programs import Place, connects
from tests.live.agents.whole.stage import Call
from tests.node import programs as node

HERE: Final = Path(__file__).parent
COPY: Final = "copy.txt"
# Lines for a shell; those of the first kind are of each shell that starts the program.
_EXPORTS: Final = "in the shell"
_ONCE: Final = "once, in a shell"
_FILE: Final = re.compile(r"in (~/)?([\w.-]+[/.][\w./-]*\w)")
# Some packages bring a binary, which a script of theirs would link.
_BINARIES: Final = ("@anthropic-ai/claude-code-linux-x64", "opencode-linux-x64/bin", ".bin")
_TOMORROW: Final = HERE / "tomorrow.cjs"
# Two places on earth that never have the same date; for the clock of JavaScript, which is of no place, a day is added, too.
_TODAY: Final = {"TZ": "Etc/GMT+12"}
_NEXT_DAY: Final = {"TZ": "Etc/GMT-14", "NODE_OPTIONS": f"--require {_TOMORROW}"}


@dataclass(frozen=True, slots=True)
class Run:
    """What a program printed, how it ended, and after how many seconds; ``code`` is None if it was stopped."""

    code: int | None
    text: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Whole:
    """``begin`` and ``resume`` are command lines without the prompt, which is the last argument; ``resume`` is None if it needs a terminal.

    ``read``, ``edit`` and ``command`` are calls of its own tools. ``pins`` has the package.json that pins its version.
    """

    name: str
    package: str
    begin: Callable[[Place], Sequence[str]]
    resume: Callable[[Place], Sequence[str]] | None
    read: Callable[[str], Call]
    edit: Callable[[str, str, str], Call]
    command: Callable[[str], Call]
    variables: Mapping[str, str] = field(default_factory=dict)
    pins: Path = programs.HERE

    @property
    def version(self) -> str:
        return str(json.loads((self.modules / self.package / "package.json").read_text())["version"])

    @property
    def modules(self) -> Path:
        return node.installed(self.pins / "package.json").folder / "node_modules"

    async def connect(self, place: Place) -> None:
        """Once in a home: what `cwm connect` says, word for word."""
        for part in connects(self.name, place):
            if part.note.startswith(_ONCE):
                done = await self._process(place, "bash", "-c", part.text)
                await done.communicate()
            elif found := _FILE.match(part.note):
                _write((place.home if found[1] else place.work) / found[2], part.text)

    async def run(
        self, place: Place, prompt: str, *, resumed: bool = True, tomorrow: bool = False, seconds: float = 240
    ) -> Run:
        parts = connects(self.name, place)
        shell = "\n".join(part.text for part in parts if part.note.startswith(_EXPORTS))
        line = (self.resume if resumed and self.resume else self.begin)(place)
        began = monotonic()
        process = await self._process(
            place, "bash", "-c", f'{shell}\nexec "$@"', "bash", *line, prompt, tomorrow=tomorrow
        )
        assert process.stdout is not None
        printed = bytearray()
        code: int | None = None
        try:
            async with asyncio.timeout(seconds):
                while piece := await process.stdout.read(65536):
                    printed += piece
                code = await process.wait()
        except TimeoutError:
            pass
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return Run(code, printed.decode(errors="replace"), monotonic() - began)

    @staticmethod
    def leave(place: Place) -> None:
        """End what it left behind in its home: Cline has a hub."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"HOME={place.home}\0".encode() in (process / "environ").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)

    async def _process(self, place: Place, *line: str, tomorrow: bool = False) -> asyncio.subprocess.Process:
        binaries = [str(self.modules / folder) for folder in _BINARIES]
        path = {"PATH": os.pathsep.join([*binaries, place.environment["PATH"]])}
        return await asyncio.create_subprocess_exec(
            *line,
            cwd=place.work,
            env={**place.environment, **path, **self.variables, **(_NEXT_DAY if tomorrow else _TODAY)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _write(file: Path, text: str) -> None:
    """Beside what is there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    there = file.read_text() if file.exists() else ""
    if there and file.suffix == ".json":
        text = json.dumps(_merged(json.loads(there), json.loads(text)))
    file.write_text(text)


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    both = {
        name: _merged(old[name], value)
        if isinstance(value, dict) and isinstance(old.get(name), dict)
        else value
        for name, value in new.items()
    }
    return {**old, **both}


def _patch(path: str, old: str, new: str) -> str:
    """For Codex, which applies it by itself."""
    line = programs.NOTE
    return f"apply_patch <<'E'\n*** Begin Patch\n*** Update File: {path}\n@@\n-{line}\n+{line.replace(old, new)}\n*** End Patch\nE"


_OPENCODE: Final = ("opencode", "run")
_QWEN: Final = (
    "qwen", "--auth-type", "openai", "--approval-mode", "yolo", "--chat-recording", "--bare", "--core-tools",
    "read_file,edit,run_shell_command",
)  # fmt: skip
_CODEX: Final = ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
_CLAUDE: Final = ("claude", "--dangerously-skip-permissions", "--tools", "Read,Edit,Bash")


def _pi(place: Place) -> tuple[str, ...]:
    """The command that `cwm connect` prints."""
    (line,) = [part.text for part in connects("pi", place) if part.note == "in a shell"]
    return tuple(line.split())


PI: Final = Whole(
    "pi",
    "@earendil-works/pi-coding-agent",
    lambda place: [*_pi(place), "-p"],
    lambda place: [*_pi(place), "--continue", "-p"],
    lambda path: Call("read", {"path": path}),
    lambda path, old, new: Call("edit", {"path": path, "edits": [{"oldText": old, "newText": new}]}),
    lambda line: Call("bash", {"command": line}),
    {"PI_OFFLINE": "1"},
)
OTHERS: Final = (
    Whole(
        "claude-code",
        "@anthropic-ai/claude-code",
        lambda _: [*_CLAUDE, "-p"],
        lambda _: [*_CLAUDE, "--continue", "-p"],
        lambda path: Call("Read", {"file_path": path}),
        lambda path, old, new: Call("Edit", {"file_path": path, "old_string": old, "new_string": new}),
        lambda line: Call("Bash", {"command": line, "description": "Runs it"}),
        {"IS_SANDBOX": "1", "DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
        pins=HERE,
    ),
    Whole(
        "codex",
        "@openai/codex",
        lambda _: _CODEX,
        lambda _: [*_CODEX, "resume", "--last"],
        lambda path: Call("exec_command", {"cmd": f"cat {path}"}),
        lambda path, old, new: Call("exec_command", {"cmd": _patch(path, old, new)}),
        lambda line: Call("exec_command", {"cmd": line}),
    ),
    Whole(
        "opencode",
        "opencode-ai",
        lambda _: _OPENCODE,
        lambda _: [*_OPENCODE, "--continue"],
        lambda path: Call("read", {"filePath": path}),
        lambda path, old, new: Call("edit", {"filePath": path, "oldString": old, "newString": new}),
        lambda line: Call("bash", {"command": line, "description": "Runs it"}),
        {"OPENCODE_DISABLE_AUTOUPDATE": "1"},
    ),
    Whole(
        "qwen-code",
        "@qwen-code/qwen-code",
        lambda _: [*_QWEN, "-p"],
        lambda _: [*_QWEN, "--continue", "-p"],
        lambda path: Call("read_file", {"file_path": path}),
        lambda path, old, new: Call("edit", {"file_path": path, "old_string": old, "new_string": new}),
        lambda line: Call("run_shell_command", {"command": line, "is_background": False}),
    ),
    Whole(
        "continue",
        "@continuedev/cli",
        lambda _: ["cn", "--auto", "-p"],
        lambda _: ["cn", "--auto", "--resume", "-p"],
        lambda path: Call("Read", {"filepath": path}),
        lambda path, old, new: Call("Edit", {"file_path": path, "old_string": old, "new_string": new}),
        lambda line: Call("Bash", {"command": line}),
    ),
    Whole(
        "cline",
        "cline",
        lambda _: ["cline"],
        # On a terminal alone.
        None,
        lambda path: Call("read_files", {"files": [{"path": path}]}),
        lambda path, old, new: Call("editor", {"path": path, "old_text": old, "new_text": new}),
        lambda line: Call("run_commands", {"commands": [line]}),
        pins=HERE,
    ),
)
