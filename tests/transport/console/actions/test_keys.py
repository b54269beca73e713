"""Keys that are made and revoked on pages, and the limits that apply to who looks."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime, timedelta

import pytest

from cwm.adapters.sql.api_keys import SqlApiKeys
from cwm.domain.access import AccessScope
from cwm.domain.api_key import ApiKey
from cwm.domain.errors import UnauthenticatedError
from cwm.domain.limits import LimitRules, Rate
from cwm.domain.principal import Principal
from cwm.services.access.authentication import Authentication
from cwm.transport.console.actions import keys
from tests.transport.console.actions.conftest import ADMIN, OWN, Desk, proposed
from tests.transport.console.reading import Document
from tests.transport.console.test_safety import HOSTILE, MARKUP

GIVEN = {"name": "ci", "scope": ["windows:read", "context:read"], "days": "30"}
KEY = re.compile(r"cwm_[0-9a-f]{16}_[A-Za-z0-9_-]{43}")
AGENT = {"x-scopes": "windows:read sessions:write"}


async def made(desk: Desk, **given: object) -> tuple[Document, str]:
    """The page that shows a new key, and the key."""
    answer = await desk.send("/keys/create", await desk.form("/keys/create"), {**GIVEN, **given})
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    (text,) = set(KEY.findall(answer.text))
    return Document(answer.text), text


def door(desk: Desk) -> Authentication:
    return Authentication("default", desk.parts.base.clock, keys=SqlApiKeys(desk.parts.base.database))


async def listed(desk: Desk) -> list[ApiKey]:
    return await desk.parts.services.keys.listed(ADMIN)


async def test_a_key_is_shown_once_and_opens_what_was_chosen(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        page, text = await made(desk)
    assert page.one("button", class_="copy").attributes["data-copy"] == text
    assert "may windows:read, context:read" in page.text
    machine = await door(desk).authenticate({"authorization": f"Bearer {text}"})
    assert machine.subject == "key:ci"
    assert machine.scopes == {AccessScope.WINDOWS_READ, AccessScope.CONTEXT_READ}
    (key,) = await listed(desk)
    assert key.expires_at is not None
    assert timedelta(days=29) < key.expires_at - datetime.now(UTC) < timedelta(days=31)
    secret = text.rpartition(key.key_id)[2]
    for path in ("/keys", "/audit", "/keys/create", f"/keys/{key.key_id}/revoke"):
        assert secret not in (await desk.form(path)).source
    assert secret not in caplog.text
    records = await desk.parts.base.trail.newest("default", 50)
    assert secret not in repr(records)
    assert await desk.events("key.create") == [("key.create", "success", "local")]


async def test_the_same_form_makes_one_key(desk: Desk) -> None:
    page = await desk.form("/keys/create")
    assert (await desk.send("/keys/create", page, GIVEN)).status_code == 200
    again = await desk.send("/keys/create", page, GIVEN)
    assert (again.status_code, "This has changed since" in again.text) == (409, True)
    assert KEY.search(again.text) is None
    assert len(await listed(desk)) == 1


async def test_a_form_that_is_wrong_is_corrected_and_makes_nothing(desk: Desk) -> None:
    for wrong, words in (
        ({"name": MARKUP}, "1 to 64 letters"),
        ({"name": ""}, "1 to 64 letters"),
        ({"scope": []}, "a key without a scope could do nothing"),
        ({"scope": ["everything"]}, "a key without a scope could do nothing"),
        ({"days": "36500"}, "days is one of those on the page"),
    ):
        answer = await desk.send("/keys/create", await desk.form("/keys/create"), {**GIVEN, **wrong})
        assert (answer.status_code, words in answer.text) == (400, True)
        assert "<script>alert" not in answer.text
    assert await listed(desk) == []


async def test_only_scopes_that_one_has_are_offered_and_given(desk: Desk) -> None:
    page = await desk.form("/keys/create")
    offered = [each.attributes["value"] for each in page.all("input", name_="scope")]
    assert "windows:write" in offered
    assert "others:read" not in offered
    for more in ({"scope": ["others:read"]}, {"workspaces": "red, blue"}):
        answer = await desk.send("/keys/create", page, {**GIVEN, **more})
        assert (answer.status_code, "CWM-9002" in answer.text) == (403, True)
    assert await listed(desk) == []
    one = {"x-scopes": "admin others:read"}
    page = await desk.form("/keys/create", headers=one)
    answer = await desk.send(
        "/keys/create", page, {**GIVEN, "scope": ["others:read"], "workspaces": "red, blue"}, **one
    )
    assert answer.status_code == 200
    assert [each.workspaces for each in await listed(desk)] == [{"red", "blue"}]


async def test_a_key_is_revoked_for_every_gateway_from_its_page_on(desk: Desk) -> None:
    _, text = await made(desk)
    (key,) = await listed(desk)
    links = (await desk.form("/keys")).links
    path = links[f"Revoke {key.key_id}"].removeprefix("/console")
    page = await desk.form(path)
    assert "Every gateway on this database refuses it from now on" in page.text
    answer = await desk.send(path, page)
    assert answer.headers["location"] == "/console/keys?notice=key-revoked"
    with pytest.raises(UnauthenticatedError):
        await door(desk).authenticate({"authorization": f"Bearer {text}"})
    again = await desk.send(path, page)
    assert (again.status_code, "It is revoked already." in again.text) == (409, True)
    assert await desk.events("key.revoke") == [("key.revoke", "success", "local")]
    listing = await desk.form("/keys")
    assert f"Revoke {key.key_id}" not in listing.links
    assert "revoked just now" in listing.text


async def test_keys_are_listed_by_pages_with_their_states(desk: Desk) -> None:
    records, now = SqlApiKeys(desk.parts.base.database), datetime.now(UTC)
    for number in range(51):
        key = ApiKey(
            "default", f"{number:016x}", f"m{number}", frozenset({AccessScope.CONTEXT_READ}), "d",
            now - timedelta(days=60 - number), now - timedelta(days=1) if number == 50 else None,
        )  # fmt: skip
        await records.add(key)
    first = await desk.form("/keys")
    assert "51 keys of the tenant" in first.text
    items = [" ".join(each.text.split()) for each in first.all("li", class_="item")]
    assert items[0].startswith(f"m50 {50:016x} expired may context:read expired 2")
    assert items[1].startswith(f"m49 {49:016x} good may context:read good until it is revoked")
    second = await desk.form(first.links["Older"].removeprefix("/console"))
    assert f"m0 {0:016x}" in second.text
    assert "Older" not in second.links
    assert "CWM-1003" in (await desk.form("/keys?after=nothing", 400)).text


async def test_another_tenant_and_who_lacks_admin_see_no_key(desk: Desk) -> None:
    await made(desk)
    (key,) = await listed(desk)
    other = {"x-tenant": "acme"}
    page = await desk.form("/keys", headers=other)
    assert "There is no key yet." in page.text
    agent = await desk.form("/keys", headers=AGENT)
    assert "With the scope admin one sees the tenant's keys here." in agent.text
    for each in (page, agent):
        assert key.key_id not in each.source
        assert not [verb for verb in each.links if verb.startswith("Revoke")]
    said = []
    for key_id in (key.key_id, "0" * 16):
        path = f"/keys/{key_id}/revoke"
        shown = await desk.form(path, 400, headers=other)
        answer = await desk.post(
            path, {"form_token": await desk.token(**other), "revision": "0"}, origin=OWN, **other
        )
        assert answer.status_code == 400
        said.append(shown.text.partition("Request")[0])
    assert said[0] == said[1]
    assert (await listed(desk))[0].revoked_at is None


async def test_names_that_others_wrote_are_shown_as_text(desk: Desk) -> None:
    key = ApiKey(
        "default", "0" * 16, HOSTILE, frozenset({AccessScope.ADMIN}), "d", datetime.now(UTC),
        workspaces=frozenset({MARKUP}),
    )  # fmt: skip
    await SqlApiKeys(desk.parts.base.database).add(key)
    for path in ("/keys", f"/keys/{key.key_id}/revoke", "/keys/create"):
        page = await desk.form(path)
        assert len(page.all("script")) == 1
        assert "<script>alert" not in page.source
        assert not set("\u202e\u2066\x1b\x07\u200b") & set(page.source)


def limits_of(page: Document) -> dict[str, str]:
    section = page.source.partition('id="limits"')[2]
    items = Document(section).all("li", class_="item")
    return {title: rest for title, _, rest in (each.text.strip().partition("\n") for each in items)}


async def test_limits_are_shown_with_what_is_used_and_the_look_is_one_read(desk: Desk) -> None:
    limits = desk.parts.base.limits
    limits.rules = LimitRules(
        session=(Rate(60, 60),),
        principal=(Rate(600, 60),),
        running_tenant=64,
        tenant_tokens=(Rate(1000, 3600),),
    )
    await limits.admit(ADMIN, "a", cost=3)
    await limits.spend(ADMIN, 900)
    for _ in range(3):
        said = {name: " ".join(text.split()) for name, text in limits_of(await desk.form("/keys")).items()}
    assert said["Requests, each session"] == "60 in a minute each session has a count of its own"
    assert said["Requests, yours"] == "3 of 600 in a minute used"
    assert said["Requests, the tenant's"] == "no limit CWM_RATE_LIMIT_TENANT makes one"
    assert said["Requests at once, the tenant's"] == "4 of 64 used"
    assert re.fullmatch(
        r"900 of 1,000 in an hour used nearly used up counted anew in (1 h|\d+ min)",
        said["Tokens of turns, the tenant's"],
    )
    assert "Tokens of turns, yours" in said
    agent = limits_of(await desk.form("/keys", headers=AGENT))
    assert not [name for name in agent if "tenant" in name]
    eve = {"x-tenant": "evil", "x-subject": "eve"}
    theirs = {
        name: " ".join(text.split())
        for name, text in limits_of(await desk.form("/keys", headers=eve)).items()
    }
    assert theirs["Tokens of turns, the tenant's"] == "0 of 1,000 in an hour used"


async def test_a_budget_that_is_nearly_used_needs_attention(desk: Desk) -> None:
    limits = desk.parts.base.limits
    limits.rules = LimitRules(principal_tokens=(Rate(1000, 86_400),), tenant_tokens=(Rate(5000, 86_400),))
    await limits.spend(ADMIN, 799)
    assert "Your tokens" not in (await desk.form("")).links
    await limits.spend(ADMIN, 1)
    page = await desk.form("")
    assert page.links["Your tokens"] == "/console/keys"
    assert "80 % of 1,000 in a day are used" in page.text
    await limits.spend(Principal("default", "other"), 4200)
    assert "The tenant's tokens" in (await desk.form("")).links
    assert "The tenant's tokens" not in (await desk.form("", headers=AGENT)).links


def test_every_scope_has_words() -> None:
    assert set(keys.WORDS) == set(AccessScope)


async def test_the_page_can_be_walked_without_a_name_that_is_not_there(desk: Desk) -> None:
    await made(desk)
    page = await desk.form("/keys")
    assert page.one("a", **{"aria-current": "page"}).text == "Keys and limits"
    for address in page.links.values():
        if address.startswith("/console"):
            assert (await desk.http.get(address)).status_code == 200, address
    assert "form_token" in proposed(await desk.form("/keys/create"))
