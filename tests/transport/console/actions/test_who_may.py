"""Who may do something from a page: scopes, rights, and only forms of this gateway's own pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from cwm.transport.console.actions.offered import ACTIONS
from cwm.transport.mcp.requests.permissions import TOOLS
from tests.transport.console.actions.conftest import ADMIN, OWN, Desk, proposed
from tests.transport.console.scenes import a_working_day

pytestmark = pytest.mark.slow

DENIED: Final = "security.access_denied"
LACKS: Final = "insufficient_scope"
SCOPES: Final = "windows:read windows:write sessions:write"
TOOL_OF: Final = {
    "/conversations/{session_id}/freeze": "window_freeze",
    "/conversations/{session_id}/unfreeze": "session_unfreeze",
    "/conversations/{session_id}/move": "session_move",
    "/conversations/{session_id}/delete": "session_delete",
    "/turns/{turn}/branch": "turn_branch",
    "/turns/{turn}/freeze": "window_freeze",
    "/turns/{turn}/tag": "turn_tag",
    "/turns/{turn}/untag": "turn_tag",
    "/turns/{turn}/revert": "turn_revert",
    "/turns/{turn}/delete": "turn_delete",
    "/windows/{window_name}/thaw": "window_thaw",
    "/windows/{window_name}/clone": "window_clone",
    "/windows/{window_name}/rename": "window_rename",
    "/windows/{window_name}/extend": "window_rename",
    "/windows/{window_name}/delete": "window_delete",
    "/engines/{engine}/drain": "engine_drain",
    "/engines/{engine}/undrain": "engine_drain",
    "/upstreams/{upstream}/accept": "engine_drain",
    "/keys/create": "engine_drain",
    "/keys/{key_id}/revoke": "engine_drain",
}
"""The tool that does the same, else one that needs the same."""


def test_an_action_needs_the_scopes_of_its_tool() -> None:
    assert {path: action.scopes for path, action in ACTIONS.items()} == {
        path: TOOLS[tool] for path, tool in TOOL_OF.items()
    }


@pytest.fixture
async def things(desk: Desk) -> dict[str, str]:
    """Of ann, who keeps them private: the names that paths have."""
    turns = await desk.say("talk", "hey", "go on")
    await desk.done("/conversations/talk/freeze", {"name": "kept"})
    share = desk.parts.services.share
    await share.session(ADMIN, "talk", "private")
    await share.window(ADMIN, "kept", "private")
    return {
        "session_id": "talk",
        "turn": turns[0],
        "window_name": "kept",
        "engine": "a",
        "upstream": "files",
        "key_id": "0" * 16,
    }


@pytest.mark.parametrize("template", ACTIONS)
async def test_without_its_scope_an_action_is_neither_shown_nor_done(
    desk: Desk, things: Mapping[str, str], template: str
) -> None:
    path = template.format_map(things)
    reader = {"x-scopes": "context:read"}
    assert "CWM-9002" in (await desk.form(path, 403, headers=reader)).text
    fields = {"form_token": await desk.token(), "revision": "0"}
    answer = await desk.post(path, fields, origin=OWN, **reader)
    assert (answer.status_code, "CWM-9002" in answer.text) == (403, True)


async def test_a_refusal_for_lack_of_a_scope_or_of_a_form_is_in_the_audit_log(desk: Desk) -> None:
    reader = {"x-scopes": "windows:read", "x-subject": "ann"}
    await desk.form("/audit", 403, headers=reader)
    await desk.form("/engines/a/drain", 403, headers=reader)
    await desk.post("/engines/a/drain", {"form_token": "0"}, origin=OWN)
    records = await desk.parts.base.trail.newest("default", 10)
    found = [(each.event.event, each.event.subject, each.event.details) for each in records][::-1]
    assert found == [
        (DENIED, "ann", {"why": LACKS, "where": "/console/audit", "required": ["admin"]}),
        (DENIED, "ann", {"why": LACKS, "where": "/console/engines/{engine}/drain", "required": ["admin"]}),
        (DENIED, "local", {"why": "form", "where": "/console/engines/{engine}/drain"}),
    ]
    assert {each.event.outcome for each in records} == {"CWM-9002"}


async def test_links_are_for_who_may(desk: Desk, things: Mapping[str, str]) -> None:
    for page in ("/conversations/talk", f"/turns/{things['turn']}", "/windows/kept", "/engines"):
        reader = await desk.form(page, headers={"x-scopes": "windows:read"})
        assert reader.all("ul", class_="actions") == []
        assert (await desk.form(page)).all("ul", class_="actions") != []
    await a_working_day(desk.parts.base.registry)
    tree = "/conversations/fix-flaky-login-test"
    assert (await desk.form(tree, headers={"x-scopes": "windows:read"})).all("a", class_="undo") == []
    assert (await desk.form(tree)).all("a", class_="undo") != []


@pytest.mark.parametrize(
    "template", [path for path in ACTIONS if not path.startswith(("/engines", "/upstreams", "/keys"))]
)
@pytest.mark.parametrize(
    "stranger",
    [{"x-subject": "bob", "x-scopes": SCOPES}, {"x-subject": "bob", "x-tenant": "acme"}],
    ids=["of the tenant", "of another tenant"],
)
async def test_what_is_somebody_elses_is_answered_like_what_there_is_not(
    desk: Desk, things: Mapping[str, str], template: str, stranger: dict[str, str]
) -> None:
    if template.endswith("/move"):
        stranger = {"x-subject": "bob", "x-tenant": "acme", "x-scopes": "admin"}
    nothing = {"session_id": "nil", "turn": "turn_nil", "window_name": "nil"}
    token = await desk.token(**stranger)
    said = []
    for names in (things, nothing):
        path = template.format_map(names)
        shown = await desk.form(path, 404, headers=stranger)
        answer = await desk.post(path, {"form_token": token, "revision": "0"}, origin=OWN, **stranger)
        assert answer.status_code == 404
        said.append(shown.text.replace(names[template.split("{")[1].partition("}")[0]], "NAME"))
    assert said[0].partition("Request")[0] == said[1].partition("Request")[0]
    assert await desk.session("talk") is not None
    assert await desk.window("kept") is not None


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": OWN, "sec-fetch-site": "cross-site"},
        {"origin": OWN, "sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {},
    ],
    ids=str,
)
async def test_a_form_that_comes_from_elsewhere_does_nothing(
    desk: Desk, things: Mapping[str, str], headers: dict[str, str]
) -> None:
    for path in ("/windows/kept/delete", "/conversations/talk/freeze", "/engines/a/drain"):
        page = await desk.form(path)
        answer = await desk.post(path, {**proposed(page), "name": "other"}, **headers)
        assert answer.status_code == 403
        assert "CWM-9002" in answer.text
    assert await desk.window("kept") is not None
    assert await desk.window("other") is None
    assert await desk.parts.base.registry.drained_engines() == {}


@pytest.mark.parametrize("token", [None, "", "0" * 64, "é"])
async def test_a_form_without_this_gateways_token_does_nothing(
    desk: Desk, things: Mapping[str, str], token: str | None
) -> None:
    page = await desk.form("/windows/kept/delete")
    answer = await desk.send("/windows/kept/delete", page, {"form_token": token})
    assert (answer.status_code, "CWM-9002" in answer.text) == (403, True)
    theirs = await desk.form("/engines/a/drain", headers={"x-subject": "bob"})
    answer = await desk.send("/windows/kept/delete", page, {"form_token": proposed(theirs)["form_token"]})
    assert answer.status_code == 403
    assert await desk.window("kept") is not None


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)</script>",
        "../../etc/passwd",
        "a'; DROP TABLE windows; --",
        "a\u202eb",
        "x" * 300,
        "a b",
        "",
    ],
)
@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/windows/kept/clone", "name"),
        ("/windows/kept/rename", "name"),
        ("/windows/kept/thaw", "session_id"),
        ("/conversations/talk/freeze", "name"),
        ("/turns/{turn}/branch", "session_id"),
        ("/turns/{turn}/tag", "tag"),
    ],
)
async def test_a_name_that_is_none_is_refused_and_shown_as_text(
    desk: Desk, things: Mapping[str, str], path: str, field: str, name: str
) -> None:
    path = path.format_map(things)
    answer = await desk.send(path, await desk.form(path), {field: name})
    assert answer.status_code == 400
    assert "<script>alert" not in answer.text
    assert "\u202e" not in answer.text
    assert "Nothing was done" in answer.text


async def test_a_refused_name_that_looks_like_an_attack_is_recorded(
    desk: Desk, things: Mapping[str, str]
) -> None:
    page = await desk.form("/windows/kept/clone")
    await desk.send("/windows/kept/clone", page, {"name": "../../etc/passwd"})
    assert [event for event, _, _ in await desk.events("security.injection")] == ["security.injection"]


@pytest.mark.parametrize(
    "path",
    [
        "/windows/{nil}/delete",
        "/turns/no%20turn/revert",
        "/conversations/a%22b/freeze",
        "/windows/a%3Cb/thaw",
    ],
)
async def test_a_path_that_names_nothing_is_a_coded_page(desk: Desk, path: str) -> None:
    page = await desk.page(path, 404 if "turn" in path else 400)
    assert "CWM-" in page.text


async def test_a_form_of_another_kind_or_too_large_is_refused(desk: Desk, things: Mapping[str, str]) -> None:
    page = await desk.form("/windows/kept/delete")
    as_json = await desk.http.post(
        "/console/windows/kept/delete", json=proposed(page), headers={"origin": OWN}
    )
    assert (as_json.status_code, "CWM-1003" in as_json.text) == (400, True)
    large = await desk.send("/windows/kept/delete", page, {"force": "x" * 100_000})
    assert large.status_code in {400, 413}
    assert await desk.window("kept") is not None
