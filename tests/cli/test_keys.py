"""Keys on the command line, and a client that shows one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import cwm, refused, serving

pytestmark = pytest.mark.slow


def test_a_key_is_shown_once_and_listed_without_what_it_proves(tmp_path: Path) -> None:
    made = cwm(tmp_path, "keys", "create", "ci", "--scope", "windows:*", "--scope", "sessions:write")
    assert made.returncode == 0, made.stderr
    key = made.stdout.strip()
    assert "not shown again" in made.stderr
    secret = key.split("_", 2)[2]

    listed = cwm(tmp_path, "keys", "list", "--json")
    assert secret not in listed.stdout
    told = json.loads(listed.stdout)["keys"]
    assert [(each["name"], each["state"], each["scopes"]) for each in told] == [
        ("ci", "good", ["windows:read", "windows:write", "sessions:write"])
    ]
    assert all(secret.encode() not in path.read_bytes() for path in tmp_path.glob("cwm.db*"))

    assert cwm(tmp_path, "keys", "revoke", told[0]["key_id"]).returncode == 0
    assert "revoked" in cwm(tmp_path, "keys", "list").stdout
    assert "There are no keys." in cwm(tmp_path, "keys", "list", "--tenant", "other").stdout


def test_a_key_for_an_agent_has_all_that_an_agent_needs(tmp_path: Path) -> None:
    assert cwm(tmp_path, "keys", "create", "coder", "--scope", "agent").returncode == 0
    (key,) = json.loads(cwm(tmp_path, "keys", "list", "--json").stdout)["keys"]
    assert key["scopes"] == [
        "windows:read", "windows:write", "sessions:write", "context:read", "context:write", "tools:call"
    ]  # fmt: skip


def test_what_makes_no_key_is_one_sentence(tmp_path: Path) -> None:
    assert "windows:red" in refused(
        cwm(tmp_path, "keys", "create", "ci", "--scope", "windows:red"), "CWM-1003", 2
    )
    refused(cwm(tmp_path, "keys", "create", "no/name", "--scope", "admin"), "CWM-1003")
    refused(cwm(tmp_path, "keys", "create", "ci", "--scope", "admin", "--tenant", "a b"), "CWM-1003", 2)
    refused(cwm(tmp_path, "keys", "revoke", "0123456789abcdef"), "CWM-1003")


def test_a_client_gets_in_with_its_key_alone(tmp_path: Path) -> None:
    key = cwm(tmp_path, "keys", "create", "me", "--scope", "windows:read").stdout.strip()
    with serving(tmp_path, CWM_API_KEYS="true") as (url, process):
        assert process.stdout is not None
        assert process.stdout.readline() == "Auth: API keys (`cwm keys`).\n"
        assert "CWM_API_KEY" in refused(cwm(tmp_path, "windows", "list", "--url", url), "CWM-9002")
        assert "CWM_API_KEY" in refused(
            cwm(tmp_path, "windows", "list", "--url", url, CWM_API_KEY="cwm_wrong"), "CWM-9002"
        )
        assert "no windows" in cwm(tmp_path, "windows", "list", "--url", url, CWM_API_KEY=key).stdout
        refused(cwm(tmp_path, "windows", "delete", "w", "--yes", "--url", url, CWM_API_KEY=key), "CWM-9002")
        refused(cwm(tmp_path, "reconcile", "--json", "--url", url, CWM_API_KEY=key), "CWM-9002")
