"""Every route asks who is there, and every face says no in its own words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cwm.cli.demo.gateway import RunningGateway
from cwm.settings import Auth
from tests.transport.http.secured import a_key, http, initialize, machine_keys, made, secured

pytestmark = pytest.mark.slow

TURN = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
PUBLIC = "https://cwm.test"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with secured(tmp_path) as gateway:
        yield gateway


async def test_a_stranger_is_refused_on_every_route_but_the_open_ones(running: RunningGateway) -> None:
    async with http(running) as client:
        for method, path in (
            ("POST", "/mcp"),
            ("GET", "/mcp"),
            ("DELETE", "/mcp"),
            ("POST", "/v1/chat/completions"),
            ("GET", "/v1/models"),
            ("GET", "/v1/anything"),
            ("POST", "/reconcile"),
            ("GET", "/metrics"),
            ("GET", "/not/there"),
        ):
            answer = await client.request(method, path)
            assert answer.status_code == 401, path
            assert answer.headers["www-authenticate"].startswith("Bearer "), path
            assert answer.headers["cache-control"] == "no-store", path
            assert answer.headers["x-should-retry"] == "false", path
        assert (await client.get("/healthz")).json() == {"status": "healthy"}


async def test_each_face_refuses_in_its_own_shape(running: RunningGateway) -> None:
    async with http(running) as client:
        of_mcp = (await client.post("/mcp", **initialize())).json()
        of_openai = (await client.post("/v1/chat/completions", json=TURN)).json()
        of_anthropic = (await client.post("/v1/messages", json=TURN)).json()
        plain = (await client.post("/reconcile", json={"dry_run": True})).json()
    coded = {
        "code": "CWM-9002",
        "message": "This needs an access token or an API key, as a bearer token.",
        "retryable": False,
        "context": {"reason": "unauthenticated"},
    }
    assert plain == coded
    assert of_mcp == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -32600, "message": coded["message"], "data": coded},
    }
    assert of_openai["error"] == {"type": "authentication_error", "param": None, **coded}
    assert of_anthropic.pop("request_id")
    assert of_anthropic == {"type": "error", "error": {"type": "authentication_error", **coded}}


@pytest.mark.parametrize("path", ["/reconcile\n", "/metrics\n", "/v1/chat/completions\n", "/mcp\n", "/\x7f"])
async def test_no_spelling_of_a_path_goes_round_its_scope(running: RunningGateway, path: str) -> None:
    key = await a_key(running, "windows:read")
    async with http(running, key) as client:
        for method in ("GET", "POST"):
            asked = client.build_request(method, path.replace("\n", "%0A").replace("\x7f", "%7F"))
            assert (await client.send(asked)).status_code == 404


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens"]
)
@pytest.mark.parametrize("end", ["", "/", "//"])
async def test_no_slash_at_the_end_goes_round_a_scope(running: RunningGateway, path: str, end: str) -> None:
    async with http(running, await a_key(running, "windows:read")) as client:
        assert (await client.post(path + end, json=TURN)).status_code == 403


async def test_anthropics_clients_sign_in_with_their_key(running: RunningGateway) -> None:
    key, other = await a_key(running, "sessions:write"), await a_key(running, "windows:read", name="other")
    async with http(running) as client, http(running, key) as bearer:
        # The engine is not there, so whoever may ask it hears of that.
        answer = await client.post("/v1/messages", json=TURN, headers={"x-api-key": key})
        assert answer.status_code == 529
        assert answer.json()["request_id"] == answer.headers["request-id"]
        assert (await client.get("/v1/models", headers={"x-api-key": key})).status_code == 503
        refused = await client.post("/v1/messages", json=TURN, headers={"x-api-key": other})
        assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
        for nonsense in ("nonsense", "a b", ""):
            refused = await client.post("/v1/messages", json=TURN, headers={"x-api-key": nonsense})
            assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        # A bearer token goes before the key, whichever of them is good.
        answer = await bearer.post("/v1/messages", json=TURN, headers={"x-api-key": "sk-ant-1"})
        assert answer.status_code == 529
        wrong = {"authorization": "Bearer nonsense", "x-api-key": key}
        assert (await client.post("/v1/messages", json=TURN, headers=wrong)).status_code == 401
        assert (
            await client.post("/mcp", **initialize() | {"headers": {"x-api-key": key}})
        ).status_code == 401


async def test_readiness_is_told_to_all_and_details_to_those_who_are_known(running: RunningGateway) -> None:
    key = await a_key(running, "windows:read")
    async with http(running) as stranger, http(running, key) as known:
        assert set((await stranger.get("/readyz")).json()) == {"status"}
        assert "components" in (await known.get("/readyz")).json()
        bad = await stranger.get("/readyz", headers={"authorization": "Bearer nonsense"})
        assert (bad.status_code, set(bad.json())) == (503, {"status"})


async def test_upkeep_metrics_and_turns_need_their_scopes(running: RunningGateway) -> None:
    reader, talker = await a_key(running, "windows:read"), await a_key(running, "sessions:write")
    admin = await a_key(running, "admin")
    async with http(running, reader) as reads, http(running, talker) as talks, http(running, admin) as may:
        refused = await reads.post("/v1/chat/completions", json=TURN)
        assert refused.status_code == 403
        assert refused.json()["error"]["type"] == "permission_error"
        assert refused.json()["error"]["context"]["required"] == ["sessions:write"]
        challenge = refused.headers["www-authenticate"]
        assert 'error="insufficient_scope"' in challenge
        assert 'scope="sessions:write"' in challenge
        for path in ("/v1/chat/completions/", "/v1/responses", "/v1/responses/", "/v1/responses/x/cancel"):
            assert (await reads.post(path, json=TURN)).status_code == 403
        for path in (
            "/v1/conversations",
            "/v1/conversations/",
            "/v1/conversations/x",
            "/v1/conversations/x/items",
        ):
            assert (await reads.post(path, json={})).status_code == 403
        for path in ("/v1/responses/x", "/v1/conversations/x", "/v1/conversations/x/items/y"):
            assert (await reads.delete(path)).status_code == 403
            assert (await talks.delete(path)).status_code == 404
        for path in (
            "/v1/responses/x",
            "/v1/responses/x/input_items",
            "/v1/conversations/x",
            "/v1/conversations/x/items",
        ):
            assert (await talks.get(path)).status_code == 403
            assert (await reads.get(path)).status_code == 404
        # The engine is not there, so whoever may ask it hears of that.
        assert (await talks.post("/v1/chat/completions", json=TURN)).status_code == 503
        for path in ("/metrics", "/reconcile"):
            assert (await talks.post(path)).status_code == 403
        assert "cwm_" in (await may.get("/metrics")).text
        assert (await may.post("/reconcile", json={"dry_run": True})).status_code == 200


async def test_metrics_can_be_left_open(tmp_path: Path) -> None:
    async with (
        secured(tmp_path, Auth(api_keys=True, public_metrics=True)) as running,
        http(running) as client,
    ):
        assert (await client.get("/metrics")).status_code == 200
        assert (await client.post("/reconcile")).status_code == 401


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Basic YTpi",
        "Bearer a b",
        "Bearer a, Bearer b",
        "Bearer \xe9",
        "Bearer " + "a" * 20_000,
        "Bearer cwm_",
        "Bearer cwm_0123456789abcdef_" + "x" * 43,
        "Bearer eyJhbGciOiJub25lIn0.e30.",
    ],
)
async def test_bad_credentials_are_refused_and_said_to_be_bad(running: RunningGateway, header: str) -> None:
    async with http(running) as client:
        raw = [(b"authorization", header.encode("latin-1"))]
        answer = await client.post("/mcp", content=b"{}", headers=raw)
    assert answer.status_code == 401
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]


async def test_two_credentials_are_none(running: RunningGateway) -> None:
    good = (await a_key(running, "windows:read")).encode()
    async with http(running) as client:
        both = [(b"authorization", b"Bearer " + good), (b"authorization", b"Bearer " + good)]
        assert (await client.get("/v1/models", headers=both)).status_code == 401


async def test_a_refusal_reaches_a_client_that_writes_a_large_body(running: RunningGateway) -> None:
    async with http(running) as client:
        answer = await client.post("/v1/chat/completions", content=b"x" * 4_000_000)
    assert answer.status_code == 401


async def test_a_revoked_key_is_refused_at_once_on_every_replica(tmp_path: Path) -> None:
    async with secured(tmp_path) as one, secured(tmp_path) as other:
        key, text = await made(one, "admin")
        async with http(one, text) as here, http(other, text) as there:
            assert (await here.get("/metrics")).status_code == 200
            assert (await there.get("/metrics")).status_code == 200
            await machine_keys(one).revoke("acme", key.key_id)
            assert (await there.get("/metrics")).status_code == 401
            assert (await here.get("/metrics")).status_code == 401


async def test_an_expired_key_and_a_wrong_secret_are_refused(running: RunningGateway) -> None:
    _, late = await made(running, "admin", lasting=timedelta(seconds=-1))
    good = await a_key(running, "admin")
    wrong = good[:-1] + ("A" if good[-1] != "A" else "B")
    for key in (late, wrong):
        async with http(running, key) as client:
            answer = await client.get("/metrics")
            assert answer.status_code == 401
            assert answer.json()["message"] == "The API key is unknown, revoked or expired."


async def test_refusals_are_written_down_without_what_was_shown(running: RunningGateway) -> None:
    reader = await a_key(running, "windows:read")
    async with http(running, "cwm_not-a-key-of-ours") as bad, http(running, reader) as reads:
        await bad.get("/metrics")
        await reads.post("/reconcile")
        async with http(running) as nobody:
            await nobody.get("/metrics")
    events = [
        e for e in await running.parts.base.audit.events("acme", 20) if e.event == "security.access_denied"
    ]
    assert [(e.subject, e.details) for e in events] == [
        ("key:ci", {"why": "insufficient_scope", "where": "/reconcile", "required": ["admin"]}),
        ("unauthenticated", {"why": "unknown_key", "where": "/metrics"}),
    ]
    assert {e.outcome for e in events} == {"CWM-9002"}
    assert "not-a-key" not in str(events)


async def test_a_flood_of_bad_credentials_does_not_fill_the_log(running: RunningGateway) -> None:
    async with http(running, "cwm_bad") as client:
        answers = await asyncio.gather(*(client.get("/metrics") for _ in range(100)))
    assert {answer.status_code for answer in answers} == {401}
    assert len(await running.parts.base.audit.events("acme", 200)) == 20


async def test_without_an_issuer_nobody_is_sent_anywhere(running: RunningGateway) -> None:
    async with http(running) as client:
        assert "resource_metadata" not in (await client.post("/mcp")).headers["www-authenticate"]
        assert (await client.get("/.well-known/oauth-protected-resource")).status_code == 404


async def test_a_client_finds_the_metadata_of_the_resource_that_it_asked_for(tmp_path: Path) -> None:
    auth = Auth(oauth_issuer="https://idp.test", public_url=f"{PUBLIC}/mcp/", oauth_scope_prefix="cwm/")
    scopes = [
        "cwm/windows:read",
        "cwm/windows:write",
        "cwm/sessions:write",
        "cwm/context:read",
        "cwm/context:write",
        "cwm/tools:call",
    ]
    async with secured(tmp_path, auth) as running, http(running) as client:
        for path, at, resource in (
            ("/mcp", "/.well-known/oauth-protected-resource/mcp", f"{PUBLIC}/mcp"),
            ("/v1/models", "/.well-known/oauth-protected-resource", PUBLIC),
        ):
            challenge = (await client.get(path)).headers["www-authenticate"]
            assert f'resource_metadata="{PUBLIC}{at}"' in challenge
            assert f'scope="{" ".join(scopes)}"' in challenge
            assert (await client.get(at)).json() == {
                "resource": resource,
                "authorization_servers": ["https://idp.test"],
                "scopes_supported": scopes,
                "bearer_methods_supported": ["header"],
                "resource_name": "CWM",
            }


async def test_the_public_name_is_served_and_no_other(tmp_path: Path) -> None:
    auth = Auth(api_keys=True, public_url=PUBLIC)
    async with secured(tmp_path, auth) as running:
        key = await a_key(running, "windows:read")
        async with http(running, key) as client:
            for host, status in (("cwm.test", 200), ("other.test", 421)):
                asked: dict[str, Any] = initialize()
                asked["headers"]["host"] = host
                assert (await client.post("/mcp", **asked)).status_code == status


async def test_an_issuer_that_is_not_there_is_no_reason_to_sign_in_again(tmp_path: Path) -> None:
    auth = Auth(oauth_issuer="http://127.0.0.1:9", public_url=PUBLIC)
    async with secured(tmp_path, auth) as running:
        token = "eyJhbGciOiJSUzI1NiIsImtpZCI6ImEifQ.e30.c2ln"
        async with http(running, token) as client:
            answer: httpx2.Response = await client.post("/mcp", **initialize())
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["data"]["code"] == "CWM-5005"
    assert "www-authenticate" not in answer.headers
