"""``cwm connect``: what it prints, writes and checks, at a gateway before a vLLM that answers as told."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cwm.domain.clients.known import CLIENTS
from tests.adapters.vllm.fake_vllm import MAX_MODEL_LEN, MODEL, Behaviour, FakeVllm, fake_vllm
from tests.cli.command import cwm, refused, serving

pytestmark = pytest.mark.slow


@pytest.fixture
async def vllm() -> AsyncIterator[FakeVllm]:
    async with fake_vllm() as fake:
        yield fake


@pytest.fixture
async def url(vllm: FakeVllm, tmp_path: Path) -> AsyncIterator[str]:
    with serving(tmp_path, CWM_VLLM_URL=vllm.url) as (address, _):
        yield address


async def connect(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """In a thread: the engine answers in this one."""
    return await asyncio.to_thread(cwm, folder, "connect", *arguments, **variables)


def test_without_a_client_the_clients_are_listed_with_what_works(tmp_path: Path) -> None:
    listed = json.loads(cwm(tmp_path, "connect", "--json").stdout)
    assert [each["name"] for each in listed] == [client.name for client in CLIENTS]
    by_name = {each["name"]: (each["llm"], each["mcp"]) for each in listed}
    assert by_name["opencode"] == ("/v1/chat/completions", "yes")
    assert by_name["aider"] == ("/v1/chat/completions", "no")
    assert by_name["cursor"] == ("no", "yes")


@pytest.mark.parametrize("name", [client.name for client in CLIENTS])
async def test_each_client_gets_its_configuration_and_a_check_of_each_face(
    name: str, url: str, tmp_path: Path
) -> None:
    client = next(each for each in CLIENTS if each.name == name)
    run = await connect(tmp_path, name, "--json", "--url", url)
    told = json.loads(run.stdout)
    assert told["model"] == MODEL
    faces = {"language model": client.llm, "tools (MCP)": client.mcp}
    assert {part["face"] for part in told["parts"]} == {face for face, parts in faces.items() if parts}
    texts = {face: "".join(part["text"] for part in told["parts"] if part["face"] == face) for face in faces}
    assert all(url in text or "stdio" in text for face, text in texts.items() if faces[face])
    works = {check["face"]: check["works"] for check in told["checks"]}
    assert works.pop("tools (MCP)", True)
    assert all(works.values())
    assert run.returncode == (0 if all(check["works"] for check in told["checks"]) else 1)


async def test_a_client_gets_the_length_of_the_context_that_the_gateway_gives(
    url: str, tmp_path: Path
) -> None:
    run = await connect(tmp_path, "codex", "--url", url)
    assert f"model_context_window = {MAX_MODEL_LEN}" in run.stdout
    unknown = await connect(tmp_path, "codex", "--url", url, "--model", "not-served")
    assert "model_context_window" not in unknown.stdout


async def test_the_check_offers_a_tool_and_is_not_recorded(url: str, vllm: FakeVllm, tmp_path: Path) -> None:
    run = await connect(tmp_path, "aider", "--url", url)
    assert run.returncode == 0
    assert f"aider --model openai/{MODEL} --openai-api-base {url}/v1" in run.stdout
    asked = json.loads(vllm.turns[-1].body)
    assert asked["tools"][0]["function"]["name"] == "look"
    sessions = cwm(tmp_path, "sessions", "list", "--json", "--url", url)
    assert json.loads(sessions.stdout)["sessions"] == []


async def test_a_face_that_does_not_work_says_why(url: str, vllm: FakeVllm, tmp_path: Path) -> None:
    vllm.behaviour = Behaviour.ENGINE_DEAD
    run = await connect(tmp_path, "aider", "--model", MODEL, "--url", url)
    assert run.returncode == 1
    assert "NO" in run.stdout
    assert "/v1/chat/completions answered 5" in run.stdout


CONFIGURED: dict[str, tuple[str, dict[str, Any]]] = {
    "claude-code": (".mcp.json", {"mcpServers": {"other": {"command": "x"}}}),
    "opencode": ("opencode.json", {"theme": "dark", "mcp": {"other": {"enabled": False}}}),
}


@pytest.mark.parametrize("name", CONFIGURED)
async def test_writing_keeps_what_a_file_has_and_shows_what_changes(
    name: str, url: str, tmp_path: Path
) -> None:
    file, before = CONFIGURED[name]
    path = tmp_path / file
    path.write_text(json.dumps(before))
    path.chmod(0o600)
    run = await connect(tmp_path, name, "--write", "--yes", "--url", url)
    assert f"+++ {path}" in run.stdout
    after = json.loads(path.read_text())
    [servers] = after.keys() & {"mcp", "mcpServers"}
    assert after[servers]["cwm"]["url"] == f"{url}/mcp"
    assert after[servers]["other"] == before[servers]["other"]
    assert path.stat().st_mode & 0o777 == 0o600
    again = await connect(tmp_path, name, "--write", "--yes", "--url", url)
    assert "have all of it already" in again.stdout
    path.write_text("// mine\n{}")
    damaged = await connect(tmp_path, name, "--write", "--yes", "--url", url)
    assert "not plain JSON" in refused(damaged, "CWM-1003")
    assert path.read_text() == "// mine\n{}"


WRITTEN: dict[str, tuple[str, ...]] = {
    "claude-code": (".mcp.json", ".claude/settings.local.json", ".claude"),
    "opencode": ("opencode.json",),
}


@pytest.mark.parametrize(("name", "place"), [(name, place) for name in WRITTEN for place in WRITTEN[name]])
async def test_a_link_in_a_cloned_folder_leads_nobody_out_of_it(
    name: str, place: str, url: str, tmp_path: Path
) -> None:
    outside, clone = tmp_path / "outside", tmp_path / "clone"
    for folder in (outside, clone):
        folder.mkdir()
    for file in ("victim", "settings.local.json"):
        (outside / file).write_text('{"precious": true}\n')
    link = clone / place
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(outside if place == ".claude" else outside / "victim")
    run = await connect(clone, name, "--write", "--yes", "--url", url)
    assert f"{link} is a link, and CWM follows none" in refused(run, "CWM-1003")
    assert "precious" not in run.stdout
    assert {file.read_text() for file in outside.iterdir()} == {'{"precious": true}\n'}
    assert link.is_symlink()


@pytest.mark.parametrize("name", WRITTEN)
async def test_what_is_written_aside_has_a_name_that_no_link_can_wait_under(
    name: str, url: str, tmp_path: Path
) -> None:
    victim, clone = tmp_path / "victim", tmp_path / "clone"
    victim.write_text("precious\n")
    clone.mkdir()
    links = [clone / f"{WRITTEN[name][0]}.cwm-new", clone / f".{WRITTEN[name][0]}.{os.getpid()}"]
    for link in links:
        link.symlink_to(victim)
    run = await connect(clone, name, "--write", "--yes", "--url", url)
    assert run.returncode == 0, run.stderr
    assert victim.read_text() == "precious\n"
    assert all(link.is_symlink() for link in links)
    assert "cwm" in (clone / WRITTEN[name][0]).read_text()


async def test_codex_may_keep_its_file_elsewhere_behind_a_link_of_the_users_own(
    url: str, tmp_path: Path
) -> None:
    home, kept = tmp_path / "codex", tmp_path / "dotfiles.toml"
    home.mkdir()
    kept.write_text("# mine\n")
    (home / "config.toml").symlink_to(kept)
    run = await connect(tmp_path, "codex", "--write", "--yes", "--url", url, CODEX_HOME=str(home))
    assert run.returncode == 0, run.stderr
    assert (home / "config.toml").is_symlink()
    assert tomllib.loads(kept.read_text())["mcp_servers"]["cwm"] == {"url": f"{url}/mcp"}


def configurations(folder: Path) -> set[Path]:
    """Files that a client could read."""
    return {path for path in folder.rglob("*") if ".json" in path.name or ".toml" in path.name}


@pytest.mark.parametrize(
    ("name", "asks"),
    [("claude-code", "ANTHROPIC_BASE_URL"), ("opencode", "baseURL"), ("codex", "base_url")],
)
async def test_what_would_change_for_both_faces_is_shown_and_nothing_is_written_unless_somebody_agrees(
    name: str, asks: str, url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "codex"
    folder.mkdir()
    before = configurations(tmp_path)
    run = await connect(tmp_path, name, "--write", "--url", url, CODEX_HOME=str(folder))
    assert run.returncode == 1
    added = [line for line in run.stdout.splitlines() if line.startswith("+")]
    assert any(asks in line and url in line for line in added)
    assert any(f"{url}/mcp" in line for line in added)
    assert "Write this?" in run.stdout
    assert configurations(tmp_path) == before


async def test_codex_gets_its_tables_behind_what_its_file_has(url: str, tmp_path: Path) -> None:
    home = {"CODEX_HOME": str(tmp_path / "codex"), "CWM_API_KEY": "a-key"}
    path = tmp_path / "codex" / "config.toml"
    path.parent.mkdir()
    path.write_text('# mine\n[mcp_servers.other]\ncommand = "x"')
    await connect(tmp_path, "codex", "--write", "--yes", "--url", url, **home)
    servers = tomllib.loads(path.read_text())["mcp_servers"]
    assert servers == {
        "other": {"command": "x"},
        "cwm": {"url": f"{url}/mcp", "bearer_token_env_var": "CWM_API_KEY"},
    }
    text = path.read_text()
    assert "\n# mine\n" in text
    assert tomllib.loads(text)["model_providers"]["cwm"]["wire_api"] == "responses"
    other = await connect(tmp_path, "codex", "--write", "--yes", "--url", url, CODEX_HOME=home["CODEX_HOME"])
    assert "have all of it already" in other.stdout
    path.write_text('[mcp_servers.cwm]\nurl = "http://elsewhere/mcp"\n')
    refusal = await connect(tmp_path, "codex", "--write", "--yes", "--url", url, **home)
    assert "has another [mcp_servers.cwm] already" in refused(refusal, "CWM-1003")


def test_what_cannot_be_done_is_refused_with_the_reason(tmp_path: Path) -> None:
    assert "opencode" in refused(cwm(tmp_path, "connect", "nobody"), "CWM-1003", 2)
    assert "by hand" in refused(cwm(tmp_path, "connect", "aider", "--write"), "CWM-1003", 2)
    assert "No CWM gateway answers" in refused(
        cwm(tmp_path, "connect", "aider", "--url", "http://127.0.0.1:9"), "CWM-5001"
    )
