"""What clients say of a person's machine and account beside their requests is in no audit record, log line or metric."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from fastmcp import Client

from tests.adapters.vllm.fake_vllm import MODEL, Behaviour, FakeVllm, fake_vllm
from tests.cli.command import serving

pytestmark = pytest.mark.slow

SAMPLES: Final = Path(__file__).parent.parent / "adapters" / "vllm" / "turns" / "samples"
RECORDED: Final = sorted(
    path.stem for path in SAMPLES.glob("*.json") if path.stem.startswith(("claude", "codex"))
)
INSTALLATION: Final = "00000000-0000-4000-8000-000000000007"
PROJECT: Final = "/home/dev/project"
DEVICE: Final = "dddddddddddddddd"
ACCOUNT: Final = "aaaaaaaa-0000-4000-8000-00000000acc0"
COMMIT: Final = "cccccccccccccccccccccccccccccccccccccccc"
IDENTIFYING: Final = (INSTALLATION, PROJECT, DEVICE, ACCOUNT, COMMIT)
METADATA: Final = (
    "installation_id",
    "installation-id",
    "workspaces",
    "device_id",
    "account_uuid",
    "x-codex",
    "user_id",
)
"""Names under which clients send it: where one of them stands, its value is not far."""
_OF_CODEX: Final[Mapping[str, Any]] = {
    "callId": "call_9",
    "threadId": "00000000-0000-4000-8000-000000000006",
    "sessionId": "00000000-0000-4000-8000-000000000006",
    "x-codex-turn-metadata": {
        "installation_id": INSTALLATION,
        "thread_source": "user",
        "workspaces": {PROJECT: {"latest_git_commit_hash": COMMIT, "has_changes": True}},
    },
}
"""What Codex sends with each call of a tool."""


def recorded(name: str) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Path, headers and body of a request of a real client, who has an account."""
    text = (SAMPLES / f"{name}.json").read_text().replace("smollm2-135m", MODEL)
    sample = json.loads(text.replace(r"\"account_uuid\":\"\"", rf"\"account_uuid\":\"{ACCOUNT}\""))
    return (
        ("/v1/responses" if name.startswith("codex") else "/v1/messages?beta=true"),
        sample["headers"],
        sample["body"],
    )


def variants(headers: dict[str, str], body: dict[str, Any]) -> Iterator[tuple[dict[str, str], bytes]]:
    """The request as it was recorded, and as it is refused."""
    yield headers, json.dumps(body).encode()
    said = "input" if "input" in body else "messages"
    for refused in (
        {"stream": "perhaps"},
        {"model": "nobody"},
        {"metadata": [body.get("metadata")], "client_metadata": [body.get("client_metadata")]},
        {said: [{"role": "user", "content": [{"type": "hologram", "text": PROJECT}]}]},
    ):
        yield headers, json.dumps({**body, **refused}).encode()
    yield headers, json.dumps(body).encode()[:-1]
    yield {**headers, "cwm-session-id": PROJECT}, json.dumps(body).encode()
    metadata = headers.get("x-codex-turn-metadata", "{}")
    yield {**headers, "x-codex-turn-metadata": metadata[:-1]}, json.dumps(body).encode()
    yield {**headers, "x-codex-parent-thread-id": PROJECT}, json.dumps(body).encode()


async def ask_all(url: str, vllm: FakeVllm) -> list[int]:
    """Every recorded request, with an engine that answers, and with some that do not."""
    statuses = []
    async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=30) as http:
        for name in RECORDED:
            path, headers, body = recorded(name)
            for each, content in variants(headers, body):
                statuses.append((await http.post(path, headers=each, content=content)).status_code)
            for vllm.behaviour in (Behaviour.DIES_MID_STREAM, Behaviour.ENGINE_DEAD, Behaviour.REFUSES_KEY):
                await http.post(path, headers=headers, json=body)
            vllm.behaviour = Behaviour.NORMAL
    return statuses


async def call_tools(url: str) -> list[bool]:
    """Tools as Codex and Claude Code call them; whether each was refused."""
    refused = []
    async with Client(f"{url}/mcp") as client:
        for tool, arguments in (
            ("turn_log", {}),
            ("window_status", {}),
            ("window_freeze", {"window_name": "w"}),
            ("turn_search", {"query": "x"}),
            ("window_thaw", {"window_name": "nothing"}),
            ("session_create", {"session_id": "$(no id)"}),
        ):
            for meta in (_OF_CODEX, {**_OF_CODEX, "threadId": PROJECT, "sessionId": [PROJECT]}):
                result = await client.call_tool_mcp(tool, arguments, meta=dict(meta))
                refused.append(bool(result.is_error))
    return refused


def audited(path: Path) -> list[str]:
    with sqlite3.connect(path) as database:
        rows = [json.dumps(row) for row in database.execute("SELECT * FROM audit_log ORDER BY seq")]
    database.close()
    return rows


async def test_what_identifies_a_persons_machine_or_account_is_in_no_audit_record_no_log_line_and_no_metric(
    tmp_path: Path,
) -> None:
    async with fake_vllm() as vllm:
        with serving(
            tmp_path,
            CWM_VLLM_URL=vllm.url,
            CWM_LMCACHE_URL="none",
            CWM_COORDINATOR_URL="none",
            CWM_LOG_LEVEL="DEBUG",
        ) as (url, process):
            statuses = await ask_all(url, vllm)
            refused = await call_tools(url)
            async with httpx2.AsyncClient(base_url=url, trust_env=False) as http:
                metrics = (await http.get("/metrics")).text
            process.terminate()
            process.wait(30)
        sent = b"".join(seen.body for seen in vllm.seen).decode()
    rows, log = audited(tmp_path / "cwm.db"), (tmp_path / "log").read_text()

    # All of it came in, or there would be nothing to find.
    assert len(RECORDED) == 8
    assert statuses.count(200) >= len(RECORDED)
    assert statuses.count(400) >= len(RECORDED)
    assert {True, False} == set(refused)
    assert all(each in sent for each in (INSTALLATION, PROJECT, DEVICE, ACCOUNT))
    assert any("00000000-0000-4000-8000-000000000006" in row for row in rows)
    assert "cwm_http_requests_total" in metrics

    for each in (*IDENTIFYING, *METADATA):
        assert [row for row in rows if each in row] == []
        assert [line for line in log.splitlines() if each in line] == []
        assert each not in metrics
    assert len(log.splitlines()) > 5
