"""``cwm audit`` as an operator runs it: on the database that a gateway has written to."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastmcp import Client
from fastmcp.client.transports import StdioTransport

from tests.adapters.sql.audit.test_carried_audit_log import as_it_was
from tests.cli.command import cwm, environment, refused, serving

pytestmark = pytest.mark.slow

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a gateway that refused some session ids and was stopped."""
    folder = tmp_path_factory.mktemp("written")
    with serving(folder) as (url, process):
        with httpx2.Client(base_url=url, trust_env=False, timeout=30) as client:
            for given in ("../../etc/passwd", "a; reboot", "' or 1=1 --", "only wrong", "$(id)"):
                headers = {"cwm-session-id": given, "user-agent": "attacker/1"}
                assert client.post("/v1/chat/completions", json=CHAT, headers=headers).status_code == 400
        process.terminate()
        assert process.wait(30) == 0
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(written, tmp_path / "copy"))


def lines(run: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def change(folder: Path, statement: str) -> None:
    with sqlite3.connect(folder / "cwm.db") as database:
        database.execute(statement)
    database.close()


def test_the_audit_log_is_verified_listed_and_exported(folder: Path) -> None:
    exported = lines(cwm(folder, "audit", "export"))
    assert [told["seq"] for told in exported] == [1, 2, 3, 4]
    assert [told["details"]["class"] for told in exported] == ["path_traversal", "shell", "sql", "shell"]
    first = exported[0]
    assert (first["tenant"], first["subject"], first["outcome"]) == ("default", "local", "CWM-1001")
    assert (first["face"], first["address"], first["user_agent"]) == ("openai", "127.0.0.1", "attacker/1")
    assert first["details"]["field"] == "session_id"
    assert "passwd" not in json.dumps(exported)
    assert lines(cwm(folder, "audit", "export", "--event", "window_freeze")) == []
    assert lines(cwm(folder, "audit", "export", "--until", "2026-01-01")) == []

    listed = json.loads(cwm(folder, "audit", "list", "--limit", "2", "--json").stdout)
    assert listed == {"records": exported[:1:-1]}
    assert "security.injection" in cwm(folder, "audit", "list").stdout

    verified = cwm(folder, "audit", "verify")
    assert verified.returncode == 0, verified.stdout
    assert "default: whole, 4 records." in verified.stdout
    assert f"checkpoint default:4:{exported[-1]['digest']}" in verified.stdout


def test_damage_is_told_with_exit_code_1(folder: Path) -> None:
    change(folder, "UPDATE audit_log SET address = '192.0.2.1' WHERE seq = 2")
    run = cwm(folder, "audit", "verify", "--json")
    assert run.returncode == 1
    told = json.loads(run.stdout)
    assert told["whole"] is False
    assert told["tenants"][0]["findings"] == [{"damage": "changed", "first": 2, "last": 2}]
    sentence = cwm(folder, "audit", "verify", "--tenant", "default")
    assert sentence.returncode == 1
    assert "changed: record 2 is not as it was written" in sentence.stdout


def test_a_gateway_that_stopped_has_left_a_checkpoint(folder: Path) -> None:
    (logged,) = [line for line in (folder / "log").read_text().splitlines() if "audit_checkpoint" in line]
    digest = lines(cwm(folder, "audit", "export"))[-1]["digest"]
    assert f"default:4:{digest}" in logged

    change(folder, "DELETE FROM audit_log WHERE seq = 4")
    run = cwm(folder, "audit", "verify")
    assert run.returncode == 1
    assert "cut_off: record 4" in run.stdout

    change(folder, "DELETE FROM audit_checkpoints")
    assert cwm(folder, "audit", "verify").returncode == 0
    assert cwm(folder, "audit", "verify", "--checkpoint", f"default:4:{digest}").returncode == 1


def test_another_secret_verifies_nothing_and_the_old_one_does(folder: Path) -> None:
    (folder / "secret").rename(folder / "old")
    run = cwm(folder, "audit", "verify", CWM_SECRET="a new one")
    assert run.returncode == 1
    assert "unknown_key" in run.stdout
    old = cwm(folder, "audit", "verify", "--old-secret-file", str(folder / "old"), CWM_SECRET="a new one")
    assert old.returncode == 0, old.stdout


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    refused(cwm(tmp_path, "audit", "verify", "--checkpoint", "nonsense"), "CWM-1003", 2)
    assert "cwm migrate" in refused(cwm(tmp_path, "audit", "verify"), "CWM-4002")


def test_a_tenant_without_records_is_not_called_whole(folder: Path) -> None:
    assert "tenant nosuch" in refused(cwm(folder, "audit", "verify", "--tenant", "nosuch"), "CWM-1003")
    kept = ("--checkpoint", f"nosuch:1:{'A' * 64}")
    run = cwm(folder, "audit", "verify", "--tenant", "nosuch", *kept)
    assert run.returncode == 1
    assert "cut_off: record 1" in run.stdout


def test_a_secret_that_is_missing_is_told_and_not_made(folder: Path) -> None:
    elsewhere = folder / "no" / "secret"
    sentence = refused(cwm(folder, "audit", "verify", CWM_SECRET_FILE=str(elsewhere)), "CWM-1003", 2)
    assert "CWM_SECRET_FILE" in sentence
    for command in ("list", "export"):
        run = cwm(folder, "audit", command, CWM_SECRET_FILE=str(elsewhere))
        assert "security.injection" in run.stdout, run.stderr
    assert not elsewhere.parent.exists()


def test_the_moments_that_it_prints_are_those_that_it_takes(folder: Path) -> None:
    exported = lines(cwm(folder, "audit", "export"))
    second = exported[1]["timestamp"]
    assert "." in second
    since = lines(cwm(folder, "audit", "export", "--since", second))
    until = lines(cwm(folder, "audit", "export", "--until", second.replace("Z", "+00:00")))
    assert (until, since) == (exported[:1], exported[1:])
    for moment in ("0001-01-01T00:00:00+14:00", "yesterday"):
        run = cwm(folder, "audit", "list", "--since", moment)
        assert run.returncode == 2
        assert "must be a moment" in " ".join(run.stderr.split())


@pytest.mark.parametrize(
    "given",
    [f"acme:{'9' * 5000}:{'a' * 64}", f"acme:1:{'z' * 64}", f"acme:0:{'a' * 64}", f":1:{'a' * 64}"],
    ids=["digits", "hexadecimal", "nothing", "nobody"],
)
def test_what_is_no_checkpoint_is_refused(folder: Path, given: str) -> None:
    refused(cwm(folder, "audit", "verify", "--checkpoint", given), "CWM-1003", 2)


async def test_what_is_asked_over_stdio_says_so(tmp_path: Path) -> None:
    transport = StdioTransport(
        sys.executable,
        ["-m", "cwm", "stdio"],
        env=environment(tmp_path, {}),
        cwd=str(tmp_path),
        log_file=tmp_path / "log",
        keep_alive=False,
    )
    async with Client(transport) as client:
        await client.call_tool_mcp("window_delete", {"window_name": "w1"})
    (told,) = lines(cwm(tmp_path, "audit", "export"))
    assert (told["event"], told["face"], told["address"]) == ("window_delete", "stdio", None)


def test_what_a_migration_carries_over_is_signed_by_it_once(tmp_path: Path) -> None:
    asyncio.run(_make_older(tmp_path / "cwm.db"))
    migrated = cwm(tmp_path, "migrate", CWM_SECRET="the gateways' secret")
    assert "Audit log of acme: signed the records 1 to 1250" in migrated.stdout, migrated.stderr
    assert "signed" not in cwm(tmp_path, "migrate", CWM_SECRET="the gateways' secret").stdout
    verified = cwm(tmp_path, "audit", "verify", CWM_SECRET="the gateways' secret")
    assert verified.returncode == 0, verified.stdout
    assert "acme: whole, 1251 records, 1250 older than the chain." in verified.stdout

    change(tmp_path, "UPDATE audit_anchors SET signature = '' WHERE tenant = 'acme'")
    forged = cwm(tmp_path, "audit", "verify", CWM_SECRET="the gateways' secret")
    assert forged.returncode == 1
    assert "each of the records 1 to 1250" in forged.stdout


def test_without_the_secret_a_migration_signs_nothing_and_says_what_to_do(tmp_path: Path) -> None:
    asyncio.run(_make_older(tmp_path / "cwm.db"))
    migrated = cwm(tmp_path, "migrate")
    assert migrated.returncode == 0
    assert "cwm audit sign" in migrated.stdout
    assert not (tmp_path / "secret").exists()
    refused(cwm(tmp_path, "audit", "sign"), "CWM-1003", 2)
    unsigned = cwm(tmp_path, "audit", "verify", CWM_SECRET="the gateways' secret")
    assert "unsigned: each of the records 1 to 1250" in unsigned.stdout

    signed = cwm(tmp_path, "audit", "sign", "--tenant", "acme", CWM_SECRET="the gateways' secret")
    assert "acme: signed the records 1 to 1250" in signed.stdout, signed.stderr
    again = json.loads(cwm(tmp_path, "audit", "sign", "--json", CWM_SECRET="the gateways' secret").stdout)
    assert [(each["tenant"], each["result"]) for each in again["tenants"]] == [
        ("acme", "nothing"),
        ("bolt", "signed"),
    ]
    assert cwm(tmp_path, "audit", "verify", CWM_SECRET="the gateways' secret").returncode == 0


async def _make_older(path: Path) -> None:
    await (await as_it_was(f"sqlite:///{path}")).dispose()
