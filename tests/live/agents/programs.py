"""Coding agents as programs: how each is configured, starts a conversation and goes on with it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cwm.cli.connect.clients import CLIENTS, Access, Part
from tests.live.agents.proxy import Tool
from tests.node import programs as node
from tests.prepared import from_pypi

HERE: Final = Path(__file__).parent
NOTES: Final = "notes.txt"
NOTE: Final = "The code of the door is 4711."
_RUN_SECONDS: Final = 240


@dataclass(frozen=True, slots=True)
class Place:
    """Where a program runs: a home of its own, a folder to work in, and the model that it is to use."""

    home: Path
    work: Path
    url: str
    model: str

    @property
    def notes(self) -> str:
        return str(self.work / NOTES)


@dataclass(frozen=True, slots=True)
class Agent:
    """``begin`` and ``resume`` are its command lines without the prompt, which comes last.

    ``tool`` is one that it has, called so that it reads the notes. ``prepare`` writes its configuration.
    """

    name: str
    begin: Callable[[Place], Sequence[str]]
    resume: Callable[[Place], Sequence[str]]
    prepare: Callable[[Place], None]
    tool: Callable[[Place], Tool] | None
    variables: Callable[[Place], Mapping[str, str]] = field(default=lambda _: {})

    async def says(self, place: Place, prompt: str, *, resumed: bool) -> str:
        """Run it once. Returns what it printed; AssertionError if it failed."""
        line = [*(self.resume if resumed else self.begin)(place), prompt]
        variables = {
            "HOME": str(place.home),
            "PWD": str(place.work),
            **{
                f"XDG_{each}_HOME": str(place.home / each.lower())
                for each in ("DATA", "CONFIG", "CACHE", "STATE")
            },
            **self.variables(place),
        }
        process = await asyncio.create_subprocess_exec(
            *line,
            cwd=place.work,
            env=node.environment(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(_RUN_SECONDS):
                printed, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        text = printed.decode(errors="replace")
        assert process.returncode == 0, f"{self.name} ended with {process.returncode}: {text[-2000:]}"
        return text


def place(folder: Path, url: str, model: str) -> Place:
    home, work = folder / "home", folder / "work"
    home.mkdir(parents=True)
    work.mkdir()
    (work / NOTES).write_text(f"{NOTE}\n")
    subprocess.run(["git", "init", "--quiet", str(work)], check=True)
    return Place(home, work, url, model)


def _node(package: str, *arguments: str) -> list[str]:
    """A program of package.json; some bring a binary in place of a script."""
    return [str(node.installed(HERE / "package.json").folder / "node_modules" / package), *arguments]


def _script(program: str, *arguments: str) -> list[str]:
    return [*node.installed(HERE / "package.json").line(program, *arguments)]


def _opencode(*more: str) -> Callable[[Place], Sequence[str]]:
    return lambda _: _node("opencode-linux-x64/bin/opencode", "run", *more)


def _prepare_opencode(place: Place) -> None:
    models = {place.model: {"limit": {"context": 8192, "output": 64}}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "CWM",
        "options": {"baseURL": f"{place.url}/v1", "apiKey": "none"},
        "models": models,
    }
    settings = {
        "model": f"cwm/{place.model}",
        "autoupdate": False,
        "share": "disabled",
        "provider": {"cwm": provider},
    }
    (place.work / "opencode.json").write_text(json.dumps(settings))


_QWEN: Final = (
    "--auth-type", "openai", "--bare", "--approval-mode", "yolo", "--chat-recording", "--core-tools", "read_file",
    "--system-prompt", "Be brief.",
)  # fmt: skip


def _qwen(*more: str) -> Callable[[Place], Sequence[str]]:
    return lambda _: _script("qwen", *_QWEN, *more, "-p")


def _continue(*more: str) -> Callable[[Place], Sequence[str]]:
    return lambda place: _script("cn", "--config", str(place.home / "config.yaml"), "--auto", *more, "-p")


def _prepare_continue(place: Place) -> None:
    (place.home / "config.yaml").write_text(
        "name: tests\nversion: 0.0.1\nschema: v1\nmodels:\n  - name: CWM\n    provider: openai\n"
        f"    model: {place.model}\n    apiBase: {place.url}/v1\n    apiKey: none\n    roles: [chat]\n"
        "    capabilities: [tool_use]\n"
    )


def _aider(*more: str) -> Callable[[Place], Sequence[str]]:
    return lambda place: [
        sys.executable, "-m", "aider", "--model", f"openai/{place.model}", "--yes-always", "--no-auto-commits",
        "--no-check-update", "--no-show-model-warnings", "--no-analytics", "--no-stream", "--no-gitignore",
        "--map-tokens", "0", *more, "--message",
    ]  # fmt: skip


def _connects(name: str, place: Place) -> list[Part]:
    llm = next(client.llm for client in CLIENTS if client.name == name)
    assert llm is not None
    return llm(Access(place.url, place.model))


def _prepare_aider(place: Place) -> None:
    """As `cwm connect aider` says it: it rewrites its last question, so nothing but a header names its conversation."""
    (place.work / ".aider.model.settings.yml").write_text(_connects("aider", place)[-1].text)


_CODEX: Final = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")


def _codex(*more: str) -> Callable[[Place], Sequence[str]]:
    binary = "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"
    return lambda _: _node(binary, "exec", *_CODEX, *more)


def prepare_codex(place: Place, *more: str) -> None:
    """As `cwm connect codex` says it; ``more`` are further lines of its configuration, in front."""
    folder = place.home / ".codex"
    folder.mkdir()
    lines = [*more, *(part.text for part in _connects("codex", place))]
    (folder / "config.toml").write_text("\n".join(lines))


AGENTS: Final = (
    Agent(
        "opencode",
        _opencode(),
        _opencode("--continue"),
        _prepare_opencode,
        lambda place: Tool("read", {"filePath": place.notes}),
    ),
    Agent(
        "qwen-code",
        _qwen(),
        _qwen("--continue"),
        lambda _: None,
        lambda place: Tool("read_file", {"file_path": place.notes}),
        lambda place: {
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": f"{place.url}/v1",
            "OPENAI_MODEL": place.model,
        },
    ),
    Agent(
        "continue",
        _continue(),
        _continue("--resume"),
        _prepare_continue,
        lambda place: Tool("Read", {"filepath": place.notes}),
    ),
    Agent(
        "codex",
        _codex(),
        _codex("resume", "--last"),
        prepare_codex,
        lambda place: Tool("exec_command", {"cmd": f"cat {place.notes}"}),
    ),
    Agent(
        "aider",
        _aider(),
        _aider("--restore-chat-history"),
        _prepare_aider,
        None,
        lambda place: {
            "OPENAI_API_KEY": "none",
            "OPENAI_API_BASE": f"{place.url}/v1",
            "PYTHONPATH": str(from_pypi(HERE / "aider.txt")),
        },
    ),
)
