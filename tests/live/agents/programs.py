"""Coding agents as programs: how each is configured, starts a conversation and goes on with it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import httpx2

from cwm.domain.clients.client import KEY_VARIABLE, Access, Part
from cwm.domain.clients.known import CLIENTS
from tests.live.agents.proxy import Tool
from tests.node import programs as node
from tests.prepared import from_pypi

HERE: Final = Path(__file__).parent
NOTES: Final = "notes.txt"
NOTE: Final = "The code of the door is 4711."
_RUN_SECONDS: Final = 240
_CONTEXT_TOKENS: Final = 8192


@dataclass(frozen=True, slots=True)
class Place:
    """Where a program runs: a home of its own, a folder to work in, and the model that it is to use; a gateway with keys takes ``key``."""

    home: Path
    work: Path
    url: str
    model: str
    key: str = ""
    context_tokens: int = _CONTEXT_TOKENS

    @property
    def notes(self) -> str:
        return str(self.work / NOTES)

    @property
    def environment(self) -> dict[str, str]:
        folders = {
            f"XDG_{each}_HOME": str(self.home / each.lower()) for each in ("DATA", "CONFIG", "CACHE", "STATE")
        }
        key = {KEY_VARIABLE: self.key} if self.key else {}
        return node.environment({"HOME": str(self.home), "PWD": str(self.work), **folders, **key})


@dataclass(frozen=True, slots=True)
class Agent:
    """``begin`` and ``resume`` are its command lines without the prompt, which comes last. ``resume`` goes on with the last conversation.

    ``tool`` is one that it has, called so that it reads the notes. ``prepare`` writes its configuration. ``again`` goes on with the
    conversation of an id, and ``fork`` with a copy of it; ``id_of`` gives the agent's id of its only one, recorded as ``session``.
    """

    name: str
    begin: Callable[[Place], Sequence[str]]
    resume: Callable[[Place], Sequence[str]]
    prepare: Callable[[Place], None]
    tool: Callable[[Place], Tool] | None
    variables: Callable[[Place], Mapping[str, str]] = field(default=lambda _: {})
    again: Callable[[Place, str], Sequence[str]] | None = None
    fork: Callable[[Place, str], Sequence[str]] | None = None
    id_of: Callable[[Place, str], str] = field(default=lambda _, session: session)

    async def says(self, place: Place, prompt: str, *, resumed: bool) -> str:
        """Run it once. Returns what it printed; AssertionError if it failed."""
        return await self.run(place, (self.resume if resumed else self.begin)(place), prompt)

    async def run(self, place: Place, line: Sequence[str], prompt: str) -> str:
        """The same with any of its command lines."""
        process = await asyncio.create_subprocess_exec(
            *line,
            prompt,
            cwd=place.work,
            env={**place.environment, **self.variables(place)},
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


def place(
    folder: Path, url: str, model: str, *, key: str = "", context_tokens: int = _CONTEXT_TOKENS
) -> Place:
    home, work = folder / "home", folder / "work"
    home.mkdir(parents=True)
    work.mkdir()
    (work / NOTES).write_text(f"{NOTE}\n")
    subprocess.run(["git", "init", "--quiet", str(work)], check=True)
    return Place(home, work, url, model, key, context_tokens)


def _node(package: str, *arguments: str) -> list[str]:
    """A program of package.json; some bring a binary in place of a script."""
    return [str(node.installed(HERE / "package.json").folder / "node_modules" / package), *arguments]


def _script(program: str, *arguments: str) -> list[str]:
    return [*node.installed(HERE / "package.json").line(program, *arguments)]


_OPENCODE: Final = "opencode-linux-x64/bin/opencode"


def _opencode(*more: str) -> Callable[[Place], Sequence[str]]:
    return lambda _: _node(_OPENCODE, "run", *more)


def _prepare_opencode(place: Place) -> None:
    (part,) = connects("opencode", place)
    settings = {**json.loads(part.text), "autoupdate": False, "share": "disabled"}
    (place.work / "opencode.json").write_text(json.dumps(settings))


async def summarize(place: Place, session: str) -> None:
    """Have opencode compact a conversation. Its command for that is one of its server alone."""
    process = await asyncio.create_subprocess_exec(
        *_node(_OPENCODE, "serve"),
        cwd=place.work,
        env=place.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_RUN_SECONDS), httpx2.AsyncClient(timeout=None, trust_env=False) as http:
            words: list[str] = []
            while "listening" not in words:
                line = await process.stdout.readline()
                assert line, f"opencode serves nothing: {words}"
                words = line.decode().split()
            model = {"providerID": "cwm", "modelID": place.model}
            answer = await http.post(f"{words[-1]}/session/{session}/summarize", json=model)
            assert answer.status_code == 200, answer.text
    finally:
        process.terminate()
        await process.wait()


_QWEN: Final = (
    "--auth-type", "openai", "--approval-mode", "yolo", "--chat-recording", "--system-prompt", "Be brief.",
)  # fmt: skip
_QWEN_BARE: Final = ("--bare", "--core-tools", "read_file")
_QWEN_WHOLE: Final = ("--core-tools", "agent,read_file")


def _qwen(*more: str) -> Callable[[Place], Sequence[str]]:
    return lambda _: _script("qwen", *_QWEN, *more, "-p")


def _prepare_qwen(place: Place) -> None:
    """Without its memory, which makes its prompts four times as long."""
    folder = place.home / ".qwen"
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps({"memory": {"enableManagedAutoMemory": False}}))


def _continue(*more: str) -> Callable[[Place], Sequence[str]]:
    return lambda place: _script("cn", "--config", str(place.home / "config.yaml"), "--auto", *more, "-p")


def _continue_again(place: Place, conversation: str) -> Sequence[str]:
    """It resumes what was used last, and only its picker chooses another."""
    (_continue_sessions(place) / f"{conversation}.json").touch()
    return _continue("--resume")(place)


def _continue_sessions(place: Place) -> Path:
    return place.home / ".continue" / "sessions"


def _continue_id(place: Place, _: str) -> str:
    (file,) = _continue_sessions(place).glob("*-*.json")
    return file.stem


def _prepare_continue(place: Place) -> None:
    (part,) = connects("continue", place)
    (place.home / "config.yaml").write_text(part.text)


def _pi(*more: str) -> Callable[[Place], Sequence[str]]:
    return lambda place: _script("pi", "--provider", "cwm", "--model", place.model, *more, "-p")


def _prepare_pi(place: Place) -> None:
    folder = place.home / ".pi" / "agent"
    folder.mkdir(parents=True)
    (folder / "models.json").write_text(connects("pi", place)[0].text)


def _aider(*more: str) -> Callable[[Place], Sequence[str]]:
    return lambda place: [
        sys.executable, "-m", "aider", "--model", f"openai/{place.model}", "--yes-always", "--no-auto-commits",
        "--no-check-update", "--no-show-model-warnings", "--no-analytics", "--no-stream", "--no-gitignore",
        "--map-tokens", "0", *more, "--message",
    ]  # fmt: skip


def connects(name: str, place: Place) -> list[Part]:
    """What `cwm connect` says connects the client to the model."""
    llm = next(client.llm for client in CLIENTS if client.name == name)
    assert llm is not None
    return llm(Access(place.url, place.model, bool(place.key), place.context_tokens))


def _prepare_aider(place: Place) -> None:
    """As `cwm connect aider` says it: it rewrites its last question, so nothing but a header names its conversation."""
    (place.work / ".aider.model.settings.yml").write_text(connects("aider", place)[-1].text)


_CODEX: Final = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")


def _codex(*more: str) -> Callable[[Place], Sequence[str]]:
    binary = "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"
    return lambda _: _node(binary, "exec", *_CODEX, *more)


def prepare_codex(place: Place, *more: str) -> None:
    """As `cwm connect codex` says it; ``more`` are further lines of its configuration, in front, or in place of its own."""
    folder = place.home / ".codex"
    folder.mkdir()
    named = tuple(line.partition("=")[0] for line in more)
    lines = [line for part in connects("codex", place) for line in part.text.splitlines()]
    lines = [*more, *(line for line in lines if not named or not line.startswith(named))]
    (folder / "config.toml").write_text("\n".join(lines))


AGENTS: Final = (
    Agent(
        "opencode",
        _opencode(),
        _opencode("--continue"),
        _prepare_opencode,
        lambda place: Tool("read", {"filePath": place.notes}),
        again=lambda place, conversation: _opencode("--session", conversation)(place),
        fork=lambda place, conversation: _opencode("--session", conversation, "--fork")(place),
    ),
    Agent(
        "qwen-code",
        _qwen(*_QWEN_BARE),
        _qwen(*_QWEN_BARE, "--continue"),
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
        again=_continue_again,
        fork=lambda place, conversation: _continue("--fork", conversation)(place),
        id_of=_continue_id,
    ),
    Agent(
        "codex",
        _codex(),
        _codex("resume", "--last"),
        prepare_codex,
        lambda place: Tool("exec_command", {"cmd": f"cat {place.notes}"}),
        again=lambda place, conversation: _codex("resume", conversation)(place),
        fork=lambda place, conversation: _codex("fork", conversation)(place),
    ),
    Agent(
        "pi",
        _pi(),
        _pi("--continue"),
        _prepare_pi,
        lambda place: Tool("read", {"path": place.notes}),
        lambda _: {"PI_OFFLINE": "1"},
        again=lambda place, conversation: _pi("--session", conversation)(place),
        fork=lambda place, conversation: _pi("--fork", conversation)(place),
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

TASK: Final = "Which code is in the notes?"
_OPENCODE_AGENT, _QWEN_AGENT, _, _CODEX_AGENT = AGENTS[:4]
# Of Continue's, a run without a terminal says "No active session found"; aider has none.
SUB_AGENTS: Final = (
    (
        _OPENCODE_AGENT,
        Tool("task", {"description": "Read the notes", "prompt": TASK, "subagent_type": "general"}),
    ),
    (
        replace(
            _QWEN_AGENT,
            begin=_qwen(*_QWEN_WHOLE),
            resume=_qwen(*_QWEN_WHOLE, "--continue"),
            prepare=_prepare_qwen,
        ),
        Tool("agent", {"description": "Read the notes", "prompt": TASK, "subagent_type": "general-purpose"}),
    ),
    (_CODEX_AGENT, Tool("spawn_agent", {"message": TASK})),
)
"""Agents that have sub-agents, and the tool that gives one its task."""
