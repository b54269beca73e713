"""A certified OpenID provider signs agents in, and the gateway takes its word."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx2
import pytest
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from mcp_types import TextContent

from cwm.cli.demo.gateway import RunningGateway
from cwm.settings import Auth
from tests.node.programs import Programs, free_port
from tests.transport.http.secured import http, secured
from tests.transport.mcp.gateway import LEGACY, MODERN

pytestmark = pytest.mark.slow

CALLBACK = "http://127.0.0.1/callback"
VERIFIER = "a-verifier-of-a-test.that-is-long-enough-to-be-one"
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).decode().rstrip("=")
ALL = "windows:read windows:write sessions:write context:read context:write tools:call"


@dataclass(frozen=True, slots=True)
class Deployment:
    """A gateway, and the provider that it trusts."""

    issuer: str
    running: RunningGateway

    @property
    def audience(self) -> str:
        return f"{self.running.url}/mcp"

    async def machine(self, client: str = "machine", scope: str = ALL, **more: str) -> str:
        """An access token by client credentials."""
        form = {"grant_type": "client_credentials", "scope": scope, **more}
        return str((await self.post("/token", form, (client, f"{client}-secret")))["access_token"])

    async def person(self, login: str, scope: str = ALL) -> dict[str, Any]:
        """Tokens by authorization code and PKCE."""
        asked = httpx2.URL(f"{self.issuer}/auth").copy_merge_params(
            {
                "client_id": "desktop",
                "response_type": "code",
                "redirect_uri": CALLBACK,
                "scope": f"openid {scope}",
                "resource": self.audience,
                "code_challenge": CHALLENGE,
                "code_challenge_method": "S256",
            }
        )
        returned = await signed_in(str(asked), login)
        return await self.redeemed(
            {
                "grant_type": "authorization_code",
                "code": returned["code"],
                "redirect_uri": CALLBACK,
                "code_verifier": VERIFIER,
            }
        )

    async def redeemed(self, form: dict[str, str]) -> dict[str, Any]:
        told = await self.post("/token", {"client_id": "desktop", "resource": self.audience, **form})
        return dict(told)

    async def post(self, path: str, form: dict[str, str], auth: tuple[str, str] | None = None) -> Any:
        async with httpx2.AsyncClient(trust_env=False, auth=auth) as client:
            answer = await client.post(self.issuer + path, data=form)
            assert answer.status_code == 200, answer.text
            return answer.json() if answer.content else None

    async def status(self, token: str, path: str = "/v1/nothing") -> int:
        """What a request with this token is answered; 404 is what one is that came through."""
        async with http(self.running, token) as client:
            return (await client.get(path)).status_code

    def client(self, token: str, era: str) -> Client[Any]:
        return Client(StreamableHttpTransport(f"{self.running.url}/mcp", auth=token), mode=era)

    async def why(self) -> str:
        """Why the last request was refused, as the audit log has it."""
        events = await self.running.parts.base.audit.events("acme", 5)
        return str(next(event for event in events if event.event == "security.access_denied").details["why"])


async def signed_in(url: str, login: str) -> dict[str, str]:
    """Fill in the provider's pages as a person would; what it tells the client at its callback."""
    async with httpx2.AsyncClient(trust_env=False) as browser:
        answer = await browser.get(url)
        for _ in range(12):
            if answer.is_redirect:
                url = urljoin(str(answer.request.url), answer.headers["location"])
                if urlsplit(url).path == urlsplit(CALLBACK).path:
                    return {name: told[0] for name, told in parse_qs(urlsplit(url).query).items()}
                answer = await browser.get(url)
                continue
            assert answer.status_code == 200, answer.text
            action = re.search(r'<form[^>]*action="([^"]+)"', answer.text)
            prompt = re.search(r'name="prompt" value="([^"]+)"', answer.text)
            assert action, answer.text
            assert prompt, answer.text
            form = {"prompt": prompt[1], "login": login, "password": "any"}
            answer = await browser.post(urljoin(str(answer.request.url), action[1]), data=form)
    raise AssertionError("The provider asks for ever.")


def auth_of(issuer: str, port: int, **more: Any) -> Auth:
    return Auth(
        oauth_issuer=issuer,
        public_url=f"http://127.0.0.1:{port}",
        oauth_introspection_url=f"{issuer}/token/introspection",
        oauth_client_id="gateway",
        oauth_client_secret="gateway-secret",
        oauth_introspection_cache_seconds=0,
        oauth_leeway_seconds=0,
        oauth_tenant_claim="tenant",
        **more,
    )


@pytest.fixture
async def deployment(programs: Programs, tmp_path: Path) -> AsyncIterator[Deployment]:
    port, at = free_port(), free_port()
    async with AsyncExitStack() as stack:
        issuer = await stack.enter_async_context(
            programs.authorization_server(f"http://127.0.0.1:{port}/mcp", port=at)
        )
        running = await stack.enter_async_context(secured(tmp_path, auth_of(issuer, port), port=port))
        yield Deployment(issuer, running)


@pytest.mark.parametrize("client", ["machine", "elliptic", "opaque"])
async def test_a_machine_signs_in_with_its_credentials(deployment: Deployment, client: str) -> None:
    token = await deployment.machine(client, "windows:read context:write")
    assert (token.count(".") == 2) == (client != "opaque")
    assert await deployment.status(token) == 404
    assert await deployment.status(token, "/metrics") == 403
    async with deployment.client(token, MODERN) as agent:
        names = {tool.name for tool in await agent.list_tools()}
    assert {"window_list", "context_set"} <= names
    assert not {"window_freeze", "context_get", "get_metrics_data"} & names


async def test_a_token_for_another_resource_is_refused(deployment: Deployment) -> None:
    for client in ("machine", "opaque"):
        elsewhere = await deployment.machine(client, resource="https://other.test/mcp")
        assert await deployment.status(elsewhere) == 401
        assert await deployment.why() == "wrong_audience"


async def test_an_id_token_is_no_access_token(deployment: Deployment) -> None:
    tokens = await deployment.person("alice")
    assert await deployment.status(tokens["access_token"]) == 404
    assert await deployment.status(tokens["id_token"]) == 401
    assert await deployment.status(tokens["refresh_token"]) == 401


async def test_a_revoked_token_is_refused_at_the_next_request(deployment: Deployment) -> None:
    token = await deployment.machine("opaque")
    assert await deployment.status(token) == 404
    await deployment.post("/token/revocation", {"token": token}, ("opaque", "opaque-secret"))
    assert await deployment.status(token) == 401
    assert await deployment.why() == "inactive"


async def test_tenants_come_from_the_token_and_see_nothing_of_each_other(deployment: Deployment) -> None:
    alice = (await deployment.person("alice"))["access_token"]
    eve = (await deployment.person("eve"))["access_token"]
    async with deployment.client(alice, LEGACY) as one, deployment.client(eve, LEGACY) as other:
        await one.call_tool("context_set", {"key": "a", "value": "alice's", "scope": "tenant"})
        mine, theirs = [
            (await agent.call_tool("context_list", {"scope": "tenant"})).structured_content
            for agent in (one, other)
        ]
    assert mine is not None
    assert theirs is not None
    assert (len(mine["entries"]), len(theirs["entries"])) == (1, 0)


@pytest.mark.parametrize("era", [LEGACY, MODERN])
async def test_a_token_is_refreshed_in_the_middle_of_a_session(deployment: Deployment, era: str) -> None:
    """The new one has fewer scopes and is the same agent: its private context is still there."""
    tokens = await deployment.person("alice")
    auth = Renewed(tokens["access_token"])
    transport = StreamableHttpTransport(f"{deployment.running.url}/mcp", auth=auth)
    async with Client(transport, mode=era) as agent:
        await agent.call_tool("context_set", {"key": "mine", "value": 7, "scope": "session"})
        renewed = await deployment.redeemed(
            {
                "grant_type": "refresh_token",
                "refresh_token": tokens["refresh_token"],
                "scope": "openid context:read",
            }
        )
        assert renewed["access_token"] != tokens["access_token"]
        auth.token = renewed["access_token"]
        kept = await agent.call_tool("context_get", {"key": "mine", "scope": "session"})
        assert kept.structured_content is not None
        assert kept.structured_content["value"] == 7
        refused = await agent.call_tool_mcp("context_set", {"key": "mine", "value": 8})
        assert isinstance(refused.content[0], TextContent)
        assert json.loads(refused.content[0].text)["code"] == "CWM-9002"


class Renewed(httpx2.Auth):
    """A client that exchanged its token meanwhile."""

    def __init__(self, token: str) -> None:
        self.token = token

    def auth_flow(self, request: httpx2.Request) -> Any:
        request.headers["authorization"] = f"Bearer {self.token}"
        yield request


async def test_the_issuers_new_keys_are_taken_and_its_old_ones_are_not(
    programs: Programs, tmp_path: Path
) -> None:
    port, at = free_port(), free_port()
    audience = f"http://127.0.0.1:{port}/mcp"
    async with (
        programs.authorization_server(audience, port=at) as issuer,
        secured(tmp_path, auth_of(issuer, port), port=port) as running,
    ):
        old = await Deployment(issuer, running).machine()
        assert await Deployment(issuer, running).status(old) == 404
    # The gateway starts anew as well: how running ones follow is for the tests of the keys, which move the clock.
    async with (
        programs.authorization_server(audience, port=at, key_id="second") as issuer,
        secured(tmp_path, auth_of(issuer, port), port=port) as running,
    ):
        deployment = Deployment(issuer, running)
        assert await deployment.status(await deployment.machine()) == 404
        assert await deployment.status(old) == 401
        assert await deployment.why() == "unknown_signer"


class Kept:
    """A client's storage, in memory."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


@pytest.mark.parametrize("era", [LEGACY, MODERN])
async def test_the_official_client_finds_its_way_from_the_refusal_to_a_session(
    deployment: Deployment, era: str
) -> None:
    """401, metadata of the resource, of the server, registration, sign-in with PKCE, token, tools."""
    returned: dict[str, str] = {}

    async def redirect(url: str) -> None:
        returned.update(await signed_in(url, "alice"))

    async def callback() -> AuthorizationCodeResult:
        return AuthorizationCodeResult(
            code=returned["code"], state=returned.get("state"), iss=returned.get("iss")
        )

    kept = Kept()
    provider = OAuthClientProvider(
        server_url=f"{deployment.running.url}/mcp",
        client_metadata=OAuthClientMetadata(
            client_name="a test",
            redirect_uris=[CALLBACK],
            grant_types=["authorization_code", "refresh_token"],
            token_endpoint_auth_method="none",
        ),
        storage=kept,
        redirect_handler=redirect,
        callback_handler=callback,
    )
    transport = StreamableHttpTransport(f"{deployment.running.url}/mcp", auth=provider)
    async with Client(transport, mode=era) as agent:
        names = {tool.name for tool in await agent.list_tools()}
        assert not (await agent.call_tool("window_list", {})).is_error
    assert "window_thaw" in names
    assert "get_metrics_data" not in names
    assert kept.tokens is not None
    assert set((kept.tokens.scope or "").split()) >= set(ALL.split())
