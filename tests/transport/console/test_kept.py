"""What agents keep: the scopes of shared context with their keys, and stored results of tools."""

from __future__ import annotations

import pytest

from cwm.domain.principal import Principal
from cwm.domain.results import Part, PartKind
from cwm.domain.shared_context import scope_of
from cwm.domain.tool_policy import ToolPolicy
from cwm.services.context.requests import Setting
from tests.transport.console.reading import Console
from tests.transport.console.test_safety import MARKUP

LOCAL, OTHER = Principal("default", "local"), Principal("default", "ann")
TENANT, WORKSPACE = scope_of("default", "", "tenant"), scope_of("default", "", "workspace:web")
OWN = scope_of("default", "agent-1", "session")


async def written(console: Console) -> None:
    context = console.parts.services.shared_context
    await context.set(OTHER, TENANT, Setting("files/package.json", {"name": "web"}))
    await context.set(LOCAL, TENANT, Setting("files/package.json", {"name": "web2"}))
    await context.set(OTHER, TENANT, Setting("notes/race", "x" * 5000, immutable=True, ttl_seconds=7300))
    await context.snapshot(OTHER, TENANT, "before-release")
    await context.set(OTHER, WORKSPACE, Setting("plan", [1, 2]))
    await context.set(OTHER, OWN, Setting("mine", "alone"))


async def stored(console: Console, who: Principal, tool: str, count: int = 1) -> list[str]:
    part = Part(PartKind.JSON, "application/json", b'{"rows": [1, 2, 3]}')
    results = console.parts.services.results
    return [
        (await results.keep(who, tool, f"a{number}", [part], ToolPolicy())).handle for number in range(count)
    ]


async def test_nothing_shared_and_nothing_stored_say_how_it_begins(console: Console) -> None:
    assert "Nothing is shared yet." in (await console.page("/context")).text
    assert "No result is stored." in (await console.page("/results")).text


async def test_scopes_are_listed_with_what_they_hold_and_none_of_a_single_agent(console: Console) -> None:
    await written(console)
    page = await console.page("/context")
    items = [" ".join(each.text.split()) for each in page.all("li", class_="item")]
    assert items == ["tenant 2 keys 4.9 KiB version 3 1 snapshot", "workspace:web 1 key 5 B version 1"]
    assert "mine" not in page.text
    assert page.links["workspace:web"] == "/console/context/workspace:web"


async def test_a_key_has_its_version_its_size_and_who_wrote_it_last(console: Console) -> None:
    await written(console)
    page = await console.page("/context/tenant")
    first, second = [" ".join(each.text.split()) for each in page.all("li", class_="item")]
    assert first.startswith("files/package.json 15 B version 2 by local")
    assert second.startswith("notes/race 4.9 KiB version 3 by ann cannot be changed")
    assert "expires in 2 h" in second
    assert "before-release (version 3, by ann)" in page.text
    assert "Everybody of the tenant reads it with the scope context:read" in page.text
    found = await console.page("/context/tenant?q=notes/")
    assert [each.text.split()[0] for each in found.all("li", class_="item")] == ["notes/race"]
    assert "No key begins like this." in (await console.page("/context/tenant?q=nothing")).text


async def test_many_keys_and_results_come_page_by_page(console: Console) -> None:
    context = console.parts.services.shared_context
    for number in range(53):
        await context.set(OTHER, WORKSPACE, Setting(f"k&{number:02}", number))
    first = await console.page("/context/workspace:web")
    second = await console.page(first.links["Further ones"].removeprefix("/console"))
    assert [each.text.split()[0] for each in second.all("li", class_="item")] == ["k&50", "k&51", "k&52"]
    handles = await stored(console, LOCAL, "search", 27)
    newest = await console.page("/results")
    older = await console.page(newest.links["Older"].removeprefix("/console"))
    shown = [each.text for each in (*newest.all("span", class_="id"), *older.all("span", class_="id"))]
    assert shown == handles[::-1]
    assert "Older" not in older.links


async def test_results_are_ones_own(console: Console) -> None:
    (own,) = await stored(console, LOCAL, "github_search")
    (others,) = await stored(console, OTHER, "github_search")
    page = await console.page("/results")
    said = " ".join(page.one("li", class_="item").text.split())
    assert said.startswith(f"github_search {own} 19 B 1 part: application/json expires in")
    assert others not in page.text
    assert "1 result, 19 B" in page.text


async def test_keys_authors_and_tools_are_shown_as_text(console: Console) -> None:
    somebody = Principal("default", MARKUP)
    await console.parts.services.shared_context.set(somebody, TENANT, Setting(MARKUP, 1))
    await stored(console, LOCAL, MARKUP)
    for path in ("/context/tenant", "/context/tenant?q=%3Cscript%3E", "/results"):
        page = await console.page(path)
        assert MARKUP in page.text
        assert "<script>alert" not in page.source


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/context/session", 400, "CWM-1003"),
        ("/context/answers:a", 400, "CWM-1003"),
        ("/context/tenant?q=a%0Ab", 400, "CWM-1003"),
        ("/results?after=r_0000000000000000000000", 404, "CWM-2005"),
    ],
)
async def test_what_is_not_there_or_not_ones_own_is_said_with_its_code(
    console: Console, path: str, status: int, code: str
) -> None:
    await written(console)
    assert f"{status} · {code}" in (await console.page(path, status)).text
