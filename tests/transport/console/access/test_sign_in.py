"""People sign in with an API key, look or act as it allows, and sign out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.sql.api_keys import SqlApiKeys
from cwm.domain.access import EVERY, AccessScope
from cwm.domain.turn import Turn
from cwm.services.access.machine_keys import MachineKeys
from cwm.settings import Auth
from cwm.transport.console.access.sign_in import Attempt, Cookies, SignIn
from tests.adapters.oauth.authority import MovableClock
from tests.transport.console.conftest import a_console
from tests.transport.console.reading import Console, Document, sound
from tests.transport.console.scenes import assistant, opened, user

pytestmark = pytest.mark.slow

OWN = {"origin": "http://127.0.0.1:8700"}
PAGE = {"accept": "text/html,*/*;q=0.8"}
READING = frozenset({AccessScope.WINDOWS_READ, AccessScope.CONTEXT_READ})


@dataclass(frozen=True)
class Door(Console):
    """A console where people say who they are. The client keeps cookies as a browser does."""

    @property
    def keys(self) -> MachineKeys:
        base = self.parts.base
        return MachineKeys(SqlApiKeys(base.database), base.audit, SystemClock())

    async def key(
        self, name: str = "ann", tenant: str = "default", scopes: frozenset[AccessScope] = EVERY
    ) -> str:
        return (await self.keys.create(tenant, name, scopes, timedelta(days=1)))[1]

    async def sign_in(self, key: str, **more: str) -> httpx2.Response:
        return await self.http.post("/console/sign-in", data={"key": key, **more}, headers={**OWN, **PAGE})

    async def talk(self, session_id: str, tenant: str, owner: str, circle: str = "tenant") -> Turn:
        scene = await opened(self.parts.base.registry, session_id, tenant, owner=owner, circle=circle)
        return await scene.turn(user("hey"), assistant("ho"))

    async def form(self, path: str) -> dict[str, str]:
        page = await self.page(path)
        return {
            each.attributes["name"]: each.attributes["value"] for each in page.all("input", type="hidden")
        }

    async def post(self, path: str, form: dict[str, str]) -> httpx2.Response:
        return await self.http.post(f"/console{path}", data=form, headers={**OWN, **PAGE})


@pytest.fixture
async def door(tmp_path: Path, sqlite_template: Path) -> AsyncIterator[Door]:
    async with a_console(tmp_path, sqlite_template, Auth(api_keys=True)) as served:
        yield Door(served.http, served.parts)


async def test_who_is_not_signed_in_is_led_to_the_sign_in_and_back(door: Door) -> None:
    asked = await door.answer("/windows?q=login", **PAGE)
    assert asked.status_code == 303
    assert asked.headers["location"] == "/console/sign-in?next=%2Fconsole%2Fwindows%3Fq%3Dlogin"
    page = sound(Document((await door.http.get(asked.headers["location"])).text))
    assert page.all("nav") == []
    target = page.one("input", type="hidden").attributes["value"]
    answer = await door.sign_in(await door.key(), next=target)
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/windows?q=login")
    assert "ann" in (await door.page("/windows?q=login")).text


@pytest.mark.parametrize(
    "path", ["", "/conversations/s1", "/events", "/audit", "/nowhere", "/tenant", "/sign-in/else"]
)
async def test_nothing_is_told_to_who_is_not_signed_in(door: Door, path: str) -> None:
    answer = await door.answer(path)
    assert (answer.status_code, "CWM-9002" in answer.text) == (401, True)
    assert (await door.http.post(f"/console{path}", headers=OWN)).status_code == 401
    assert (await door.http.get(f"/console{path}", headers=PAGE)).status_code == 303


async def test_files_that_pages_load_need_no_sign_in(door: Door) -> None:
    page = Document((await door.http.get("/console/sign-in")).text)
    for each in page.all("link"):
        assert (await door.http.get(each.attributes["href"])).status_code == 200


@pytest.mark.parametrize("key", ["wrong", "cwm_0000_1111", "a b", "é", ""])
async def test_a_wrong_key_signs_nobody_in(door: Door, key: str) -> None:
    answer = await door.sign_in(key)
    assert answer.status_code == (401 if key else 400)
    assert not answer.headers.get_list("set-cookie")
    if key:
        assert key not in answer.text
    sound(Document(answer.text))


async def test_the_cookie_tells_nothing_and_is_for_this_gateway_alone(door: Door) -> None:
    key = await door.key()
    (cookie,) = (await door.sign_in(key)).headers.get_list("set-cookie")
    value, *rest = cookie.split("; ")
    assert key not in cookie
    assert value.startswith("cwm-console=")
    assert rest == ["Path=/", "Max-Age=28800", "HttpOnly", "SameSite=Lax"]
    over_tls = await door.http.post(
        "/console/sign-in", data={"key": key}, headers={"origin": "https://127.0.0.1:8700"}
    )
    cookie, gone = over_tls.headers.get_list("set-cookie")
    assert cookie.startswith("__Host-cwm-console=")
    assert cookie.endswith("; Secure")
    assert gone.startswith("cwm-console=; Path=/; Max-Age=0;")


@pytest.mark.parametrize(
    "path", ["/mcp", "/v1/models", "/v1/responses/r", "/metrics", "/reconcile", "/readyz"]
)
async def test_the_cookie_opens_no_other_face(door: Door, path: str) -> None:
    await door.sign_in(await door.key())
    assert (await door.answer()).status_code == 200
    for method in ("GET", "POST"):
        answer = await door.http.request(method, path)
        assert "default" not in answer.text
        if path != "/readyz":
            assert answer.status_code == 401


async def test_a_key_as_bearer_opens_the_pages_too(door: Door) -> None:
    key = await door.key()
    assert (await door.answer(authorization=f"Bearer {key}")).status_code == 200
    await door.sign_in(key)
    assert (await door.answer(authorization="Bearer wrong")).status_code == 401


async def test_another_sites_page_signs_nobody_in(door: Door) -> None:
    key = await door.key()
    for headers in ({}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
        answer = await door.http.post("/console/sign-in", data={"key": key}, headers=headers)
        assert answer.status_code == 403
        assert not answer.headers.get_list("set-cookie")


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.test",
        "//evil.test",
        "/console/\\evil",
        "/mcp",
        "/consolex",
        "/console/a\r\nb",
        "/console/" + 2000 * "x",
    ],
)
async def test_the_sign_in_leads_nowhere_else(door: Door, target: str) -> None:
    answer = await door.sign_in(await door.key(), next=target)
    assert (answer.status_code, answer.headers["location"]) == (303, "/console")


async def test_a_revoked_key_ends_the_sign_in_at_once(door: Door) -> None:
    await door.sign_in(await door.key())
    (key,) = await door.keys.listed("default")
    await door.keys.revoke("default", key.key_id)
    assert (await door.answer("/windows", **PAGE)).status_code == 303
    assert (await door.answer("/windows")).status_code == 401


async def test_signing_out_takes_the_cookie_and_needs_the_form(door: Door) -> None:
    await door.sign_in(await door.key())
    form = await door.form("")
    assert (await door.post("/sign-out", {"form_token": "0" * 64})).status_code == 403
    assert (await door.answer()).status_code == 200
    answer = await door.post("/sign-out", form)
    assert answer.headers["location"] == "/console/sign-in?notice=signed-out"
    assert "You are signed out" in (await door.http.get(answer.headers["location"])).text
    assert (await door.answer()).status_code == 401


async def test_a_form_of_one_sign_in_is_not_another_ones(door: Door) -> None:
    key = await door.key()
    await door.sign_in(key)
    form = await door.form("")
    await door.sign_in(key)
    assert (await door.post("/sign-out", form)).status_code == 403


async def test_who_only_looks_is_offered_nothing_and_changes_nothing(door: Door) -> None:
    await door.talk("talk", "default", "key:ann")
    key = await door.key()
    await door.sign_in(key)
    assert (await door.page("/conversations/talk")).all("ul", class_="actions") != []
    form = await door.form("/conversations/talk/delete")
    await door.sign_in(key, look="1")
    page = await door.page("/conversations/talk")
    assert page.all("ul", class_="actions") == []
    assert "only looks" in page.text
    assert (await door.answer("/conversations/talk/delete")).status_code == 403
    token = (await door.form(""))["form_token"]
    for path in ("/conversations/talk/delete", "/engines/default/drain"):
        assert (await door.post(path, {**form, "form_token": token})).status_code == 403
    assert (await door.answer("/audit")).status_code == 200
    assert (await door.answer("/conversations/talk")).status_code == 200


async def test_a_key_that_reads_makes_a_sign_in_that_reads(door: Door) -> None:
    await door.talk("talk", "default", "key:eve")
    await door.sign_in(await door.key("eve", scopes=READING))
    page = await door.page("/conversations/talk")
    assert page.all("ul", class_="actions") == []
    assert (await door.answer("/audit")).status_code == 403


async def test_an_administrator_of_the_gateway_looks_at_the_records_of_every_tenant(door: Door) -> None:
    await door.talk("ours", "default", "key:ops")
    turn = await door.talk("theirs", "acme", "key:ops")
    await door.talk("private-one", "acme", "key:ops", circle="owner:key:ops")
    await door.key("ops", tenant="acme")
    await door.sign_in(await door.key("ops"))
    assert (await door.answer("/conversations/theirs")).status_code == 404
    tenants = await door.page("/tenant")
    assert [each.attributes["value"] for each in tenants.all("button", value="acme")] == ["acme"]
    form = {each.attributes["name"]: each.attributes["value"] for each in tenants.all("input", type="hidden")}
    assert (await door.post("/tenant", {**form, "tenant": "nobody"})).status_code == 400
    assert (await door.post("/tenant", {**form, "tenant": "acme"})).status_code == 303
    page = await door.page("/conversations")
    assert {"theirs", "private-one"} <= set(page.text.split())
    assert "acme" in page.text
    assert (await door.answer("/conversations/ours")).status_code == 404
    assert (await door.answer("/context")).status_code == 403
    assert (await door.answer("/conversations/theirs")).status_code == 404
    assert (await door.post("/conversations/theirs/delete", form)).status_code == 403
    for path in ("/conversations/theirs/export", f"/turns/{turn.id}/export", f"/turns/{turn.id}"):
        assert "ho" not in (await door.answer(path)).text.split()
    assert (await door.post("/tenant", {**form, "tenant": "default"})).status_code == 303
    assert (await door.answer("/conversations/ours")).status_code == 200
    events = await door.parts.base.audit.events("default", 50)
    assert [each.details["looks_at"] for each in events if each.event == "console_tenant"][-1] == "acme"


async def test_an_administrator_of_another_tenant_sees_its_own_alone(door: Door) -> None:
    await door.talk("ours", "default", "key:ops")
    await door.sign_in(await door.key("boss", tenant="acme"))
    page = await door.page()
    assert "/console/tenant" not in page.links.values()
    assert (await door.answer("/tenant")).status_code == 403
    form = {"form_token": (await door.form(""))["form_token"], "tenant": "default"}
    assert (await door.post("/tenant", form)).status_code == 403
    assert (await door.answer("/conversations/ours")).status_code == 404


async def test_sign_ins_are_in_the_audit_log_without_the_key(door: Door) -> None:
    key = await door.key()
    await door.sign_in("cwm_wrong")
    await door.sign_in(key, look="1")
    await door.post("/sign-out", await door.form(""))
    events = await door.parts.base.audit.events("default", 20)
    found = {each.event: each for each in events}
    assert found["console_sign_in"].details == {"by": "key", "looks_only": True}
    assert found["console_sign_in"].subject == "key:ann"
    assert found["console_sign_out"].outcome == "success"
    assert found["security.access_denied"].details["where"] == "console"
    assert key not in str(events)


class TestCookies:
    """What is sealed, and for how long it opens."""

    @pytest.fixture
    def clock(self) -> MovableClock:
        return MovableClock(0.0)

    @staticmethod
    def scope(*cookies: str) -> dict[str, object]:
        values = "; ".join(each.partition(";")[0] for each in cookies)
        return {"type": "http", "scheme": "http", "headers": [(b"cookie", f'odd={{"a"}}; {values}'.encode())]}

    def test_it_ends_after_a_working_day(self, clock: MovableClock) -> None:
        cookies = Cookies([b"one"], clock)
        sign_in = SignIn("key", cookies.until(SignIn))
        kept = cookies.of(self.scope()).keep(sign_in)
        clock.passed += 8 * 3600 - 1
        assert cookies.of(self.scope(*kept)).sign_in() == sign_in
        clock.passed += 1
        assert cookies.of(self.scope(*kept)).sign_in() is None

    def test_it_outlives_a_change_of_the_secret_and_no_more(self, clock: MovableClock) -> None:
        sign_in = SignIn("key", 1e12)
        kept = Cookies([b"one"], clock).of(self.scope()).keep(sign_in)
        assert Cookies([b"two", b"one"], clock).of(self.scope(*kept)).sign_in() == sign_in
        assert Cookies([b"two"], clock).of(self.scope(*kept)).sign_in() is None

    def test_a_long_token_is_kept_in_pieces_and_forgotten_whole(self, clock: MovableClock) -> None:
        cookies, long = Cookies([b"one"], clock), SignIn("t" * 9000, 1e12)
        kept = cookies.of(self.scope()).keep(long)
        assert len(kept) == 4
        assert all(len(each) < 4096 for each in kept)
        jar = cookies.of(self.scope(*kept))
        assert jar.sign_in() == long
        assert [each.split("=")[0] for each in jar.forget(SignIn)] == [each.split("=")[0] for each in kept]
        short = jar.keep(SignIn("t", 1e12))
        assert [each.split("; ")[2] for each in short[1:]] == ["Max-Age=0"] * 3
        with pytest.raises(ValueError, match="too long"):
            jar.keep(SignIn("t" * 20_000, 1e12))

    def test_what_is_changed_or_of_another_use_does_not_open(self, clock: MovableClock) -> None:
        cookies = Cookies([b"one"], clock)
        (kept,) = cookies.of(self.scope()).keep(Attempt("/console", 1e12))
        value = kept.partition(";")[0].partition("=")[2]
        for wrong in (value, value[:-2], value[2:], "", "?", "é", "A", "A" * 16):
            assert cookies.of(self.scope(f"cwm-console={wrong}")).sign_in() is None

    def test_over_tls_only_the_cookie_that_came_by_tls_counts(self, clock: MovableClock) -> None:
        plain = Cookies([b"one"], clock).of(self.scope()).keep(SignIn("key", 1e12))
        secure = Cookies([b"one"], clock, secure=True)
        assert secure.of(self.scope(*plain)).sign_in() is None
        kept = secure.of(self.scope()).keep(SignIn("key", 1e12))
        assert secure.of(self.scope(*kept)).sign_in() is not None
