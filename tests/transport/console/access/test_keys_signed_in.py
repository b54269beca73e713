"""Keys that are made in the console of a gateway that takes keys, by whoever signed in with one."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from cwm.domain.access import AccessScope
from tests.transport.console.access.test_sign_in import OWN, PAGE, Door, door
from tests.transport.console.reading import Document, sound

__all__ = ["door"]

KEY = re.compile(r"cwm_[0-9a-f]{16}_[A-Za-z0-9_-]{43}")


async def made(door: Door, name: str, *scopes: str) -> str:
    form = await door.form("/keys/create")
    answer = await door.http.post(
        "/console/keys/create",
        data={**form, "name": name, "scope": scopes, "days": "7"},
        headers={**OWN, **PAGE},
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    texts: set[str] = set(KEY.findall(sound(Document(answer.text)).source))
    (text,) = texts
    return text


async def test_who_administers_makes_a_key_that_signs_in_and_takes_it_back(door: Door) -> None:
    await door.sign_in(await door.key("root"))
    text = await made(door, "ci", "windows:read")
    (event,) = [
        each.event
        for each in await door.parts.base.trail.newest("default", 20)
        if each.event.event == "key.create" and each.event.details["name"] == "ci"
    ]
    assert (event.subject, event.outcome) == ("key:root", "success")
    bearer = {"authorization": f"Bearer {text}"}
    assert (await door.http.get("/console/windows", headers=bearer)).status_code == 200
    assert (await door.http.get("/console/keys/create", headers=bearer)).status_code == 403
    (key,) = [each for each in await door.keys.listed("default") if each.name == "ci"]
    path = f"/keys/{key.key_id}/revoke"
    answer = await door.post(path, await door.form(path))
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/keys?notice=key-revoked")
    assert (await door.http.get("/console/windows", headers=bearer)).status_code == 401


async def test_a_key_says_when_it_was_last_used(door: Door) -> None:
    await door.sign_in(await door.key("root"))
    await made(door, "ci", "windows:read")
    (key,) = [each for each in await door.keys.listed("default") if each.name == "ci"]
    items = (await door.page("/keys")).all("li", class_="item")
    assert ["no use recorded" in each.text for each in items if "ci" in each.text.split()] == [True]
    await door.keys.keys.note_use("default", key.key_id, datetime(2026, 3, 1, 9, 30, tzinfo=UTC))
    items = (await door.page("/keys")).all("li", class_="item")
    (said,) = [" ".join(each.text.split()) for each in items if "ci" in each.text.split()]
    assert "no use recorded" not in said
    assert "last used " in said


async def test_the_key_of_ones_own_sign_in_says_so_before_it_is_revoked(door: Door) -> None:
    await door.sign_in(await door.key("root"))
    (key,) = await door.keys.listed("default")
    path = f"/keys/{key.key_id}/revoke"
    assert "It is the key that you are signed in with." in (await door.page(path)).text
    await door.post(path, await door.form(path))
    assert (await door.answer("/keys")).status_code == 401


async def test_who_only_looks_makes_revokes_and_examines_nothing(door: Door) -> None:
    await door.sign_in(await door.key("root"))
    form = await door.form("/keys/create")
    await door.sign_in(await door.key("root"), look="1")
    page = await door.page("/keys")
    assert "2 keys of the tenant" in page.text
    assert not [verb for verb in page.links if verb.startswith(("Create", "Revoke"))]
    for path in ("/keys/create", "/doctor"):
        answer = await door.post(path, {**form, "name": "ci", "scope": "windows:read", "days": "7"})
        assert (answer.status_code, "CWM-9002" in answer.text) == (403, True)
    assert {each.name for each in await door.keys.listed("default")} == {"root"}


async def test_limits_are_those_of_who_signed_in(door: Door) -> None:
    await door.sign_in(await door.key("ann", scopes=frozenset({AccessScope.WINDOWS_READ})))
    text = (await door.page("/keys")).text
    assert "Requests at once, yours 1 of 16 used" in text
    assert "Requests, each session 60 in a minute 1,000 in an hour" in text
    assert "the tenant's" not in text.partition("Limits What applies")[2]
