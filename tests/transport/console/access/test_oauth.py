"""People sign in to the console at a certified OpenID provider, as a browser does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx2
import pytest

from cwm.cli.demo.gateway import RunningGateway
from cwm.settings import Auth
from tests.node.programs import Programs, free_port
from tests.transport.console.reading import Document, sound
from tests.transport.http.secured import secured

pytestmark = pytest.mark.slow

PAGE = {"accept": "text/html,*/*;q=0.8"}


@dataclass(frozen=True, slots=True)
class Deployment:
    """A gateway, the provider that it trusts, and a browser."""

    issuer: str
    running: RunningGateway
    browser: httpx2.AsyncClient

    async def at(self, address: str) -> httpx2.Response:
        return await self.browser.get(urljoin(self.running.url, address), headers=PAGE)

    async def leaves(self, address: str) -> str:
        """The address at the provider to which the gateway sends the browser."""
        answer = await self.at(address)
        assert answer.status_code == 303, answer.text
        return str(answer.headers["location"])

    async def allows(self, address: str, login: str) -> str:
        """Fill in the provider's pages as a person would; the address at the gateway to which it leads."""
        answer = await self.browser.get(address)
        for _ in range(12):
            if answer.is_redirect:
                address = urljoin(str(answer.request.url), answer.headers["location"])
                if address.startswith(self.running.url):
                    return address
                answer = await self.browser.get(address)
                continue
            action = re.search(r'<form[^>]*action="([^"]+)"', answer.text)
            prompt = re.search(r'name="prompt" value="([^"]+)"', answer.text)
            assert action, answer.text
            assert prompt, answer.text
            form = {"prompt": prompt[1], "login": login, "password": "any"}
            answer = await self.browser.post(urljoin(str(answer.request.url), action[1]), data=form)
        raise AssertionError("The provider asks for ever.")

    async def signs_in(self, login: str, address: str = "/console/sign-in/start") -> httpx2.Response:
        return await self.at(await self.allows(await self.leaves(address), login))


@asynccontextmanager
async def deployed(
    programs: Programs, folder: Path, *, ttl_seconds: int = 300, **more: str | bool | None
) -> AsyncIterator[Deployment]:
    port, at = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    async with AsyncExitStack() as stack:
        issuer = await stack.enter_async_context(
            programs.authorization_server(f"{url}/mcp", port=at, ttl_seconds=ttl_seconds)
        )
        settings = {"console_client_id": "console", "console_client_secret": "console-secret", **more}
        auth = Auth(
            oauth_issuer=issuer,
            public_url=url,
            oauth_leeway_seconds=0,
            oauth_tenant_claim="tenant",
            **settings,
        )
        running = await stack.enter_async_context(secured(folder, auth, port=port))
        browser = await stack.enter_async_context(httpx2.AsyncClient(trust_env=False))
        yield Deployment(issuer, running, browser)


@pytest.fixture
async def deployment(programs: Programs, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with deployed(programs, tmp_path) as found:
        yield found


async def test_a_person_signs_in_and_comes_back_to_the_page(deployment: Deployment) -> None:
    asked = await deployment.leaves("/console/windows?q=login")
    assert asked == "/console/sign-in?next=%2Fconsole%2Fwindows%3Fq%3Dlogin"
    page = sound(Document((await deployment.at(asked)).text))
    assert page.all("form") == []
    start = page.links["Sign in with your account"]
    leaves = await deployment.leaves(start)
    query = {name: value for name, (value,) in parse_qs(urlsplit(leaves).query).items()}
    assert query["code_challenge_method"] == "S256"
    assert query["resource"] == f"{deployment.running.url}/mcp"
    assert "admin" in query["scope"].split()
    back = await deployment.allows(leaves, "alice")
    answer = await deployment.at(back)
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/windows?q=login")
    assert answer.headers["referrer-policy"] == "no-referrer"
    shown = await deployment.at("/console/windows?q=login")
    assert shown.status_code == 200
    assert "alice" in sound(Document(shown.text)).text
    events = await deployment.running.parts.base.audit.events("acme", 5)
    assert events[0].event == "console_sign_in"
    assert events[0].subject == f"{deployment.issuer}#alice"


async def test_what_the_browser_came_back_with_is_good_once_and_there(deployment: Deployment) -> None:
    back = await deployment.allows(await deployment.leaves("/console/sign-in/start"), "alice")
    async with httpx2.AsyncClient(trust_env=False) as other:
        assert (await other.get(back, headers=PAGE)).status_code == 400
    for changed in ("state=x", "state="):
        assert (await deployment.at(re.sub("state=[^&]*", changed, back))).status_code == 400
    answer = await deployment.at(back)
    assert answer.status_code == 303
    again = await deployment.at(back)
    assert (again.status_code, "Begin again" in again.text) == (400, True)


@pytest.mark.parametrize("wrong", ["code=made-up", "error=access_denied", "iss=https%3A%2F%2Fevil.test"])
async def test_a_refusal_signs_nobody_in_and_is_recorded(deployment: Deployment, wrong: str) -> None:
    back = await deployment.allows(await deployment.leaves("/console/sign-in/start"), "alice")
    name = wrong.partition("=")[0]
    changed = (
        re.sub(rf"\b{name}=[^&]*", wrong, back)
        if f"{name}=" in back
        else back.replace("code=", f"{wrong}&x=")
    )
    answer = await deployment.at(changed)
    assert (answer.status_code, "CWM-9002" in answer.text) == (401, True)
    sound(Document(answer.text))
    assert (await deployment.at("/console")).status_code == 303


async def test_a_token_that_ended_is_had_again_without_asking_the_person(
    programs: Programs, tmp_path: Path
) -> None:
    async with deployed(programs, tmp_path, ttl_seconds=2) as short:
        await short.signs_in("alice", "/console/sign-in/start?look=1")
        async with asyncio.timeout(20):
            while (answer := await short.at("/console/audit?session=talk")).status_code != 303:
                assert "only looks" in answer.text
        start = answer.headers["location"]
        assert start.startswith("/console/sign-in/start?next=%2Fconsole%2Faudit%3Fsession%3Dtalk&look=1")
        address = await short.leaves(start)
        answer = await short.browser.get(address)
        while not answer.headers["location"].startswith(short.running.url):
            answer = await short.browser.get(urljoin(address, answer.headers["location"]))
        assert (await short.at(answer.headers["location"])).headers[
            "location"
        ] == "/console/audit?session=talk"
        assert "only looks" in (await short.at("/console/audit?session=talk")).text


async def test_who_signs_in_to_look_asks_for_no_more(deployment: Deployment) -> None:
    leaves = await deployment.leaves("/console/sign-in/start?look=1")
    assert parse_qs(urlsplit(leaves).query)["scope"] == ["windows:read context:read admin others:read"]


async def test_the_token_in_the_cookie_opens_no_other_face(deployment: Deployment) -> None:
    await deployment.signs_in("alice")
    assert (await deployment.at("/console")).status_code == 200
    for path in ("/mcp", "/v1/models", "/metrics"):
        assert (await deployment.at(path)).status_code == 401


async def test_a_public_client_needs_no_secret(programs: Programs, tmp_path: Path) -> None:
    async with deployed(programs, tmp_path, console_client_id="viewer", console_client_secret=None) as public:
        answer = await public.signs_in("alice")
        assert (answer.status_code, answer.headers["location"]) == (303, "/console")
        assert (await public.at("/console")).status_code == 200


async def test_an_issuer_that_is_away_is_said(programs: Programs, tmp_path: Path) -> None:
    port = free_port()
    auth = Auth(
        oauth_issuer=f"http://127.0.0.1:{free_port()}",
        public_url=f"http://127.0.0.1:{port}",
        console_client_id="console",
    )
    async with secured(tmp_path, auth, port=port) as running, httpx2.AsyncClient(trust_env=False) as browser:
        answer = await browser.get(f"{running.url}/console/sign-in/start", headers=PAGE)
        assert (answer.status_code, "CWM-5005" in answer.text) == (503, True)
