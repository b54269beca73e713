"""Search over what was said: newest first, page by page, in everything or in one conversation."""

from __future__ import annotations

import pytest

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.vault import Vault
from cwm.domain.access import AccessScope
from cwm.domain.errors import InvalidParameterError, SessionNotFoundError, WindowNotFoundError
from cwm.domain.keep import KeepPolicies, KeepPolicy
from cwm.domain.principal import Principal
from cwm.domain.turn import Turn, TurnSource
from cwm.domain.word_search import SearchMark
from cwm.services.turns.reading import search as search_module
from cwm.services.turns.reading.history import History
from cwm.services.turns.reading.search import FindingPage, Search
from cwm.services.turns.sending.generate import TurnInput
from tests.services.replicas_of import ANN, BOB
from tests.services.turns.talk import assistant, took, user
from tests.services.windows_of import Gateway, gateway

pytestmark = pytest.mark.slow

START = tuple(range(100, 140))
SECOND = (*START, 7, 8, 9, 50)
SAID = [user("What is the number?"), assistant("The number is 4711.")]


@pytest.fixture(params=[(), ("k" * 32,)], ids=["clear", "sealed"])
async def cwm(sqlite: Database, request: pytest.FixtureRequest) -> Gateway:
    """A session of two turns and an edit of the second; a later one of another tenant's and of hers."""
    cwm = gateway(sqlite, vault=Vault(request.param))
    await cwm.open_session(ANN, "s1")
    await took(cwm, START, messages=SAID[:1], text="The number is 4711.")
    await took(cwm, SECOND, messages=[*SAID, user("Twice the Number?")], text="9422.")
    await cwm.freeze(ANN, "s1", "w1", keep_session=True)
    await took(cwm, (*START, 7, 8, 9, 51), messages=[*SAID, user("Half of it?")], text="No whole number.")
    for principal, session_id in ((Principal("bolt", "ann"), "theirs"), (ANN, "s2")):
        await cwm.open_session(principal, session_id)
        await cwm.generate(
            principal, session_id, TurnInput(text="A number of another session.", max_tokens=2)
        )
    return cwm


def excerpts(page: FindingPage) -> list[tuple[str, int, str]]:
    return [(each.session_id, each.number, each.excerpt) for each in page.findings]


EVERYTHING = [
    ("s2", 1, "A number of another session."),
    ("s1", 3, "No whole number."),
    ("s1", 2, "Twice the Number?"),
    ("s1", 1, "The number is 4711."),
    ("s1", 1, "What is the number?"),
]


async def test_messages_with_the_words_are_found_the_newest_first(cwm: Gateway) -> None:
    search = Search(History(cwm.registry, cwm.thaw.journal))
    page = await search(ANN, "NUMBER")
    assert excerpts(page) == EVERYTHING
    assert page.next_cursor is None
    assert page.searched == 8
    assert page.findings[1].role == "assistant"
    assert excerpts(await search(ANN, "number 4711")) == [("s1", 1, "The number is 4711.")]
    assert excerpts(await search(ANN, "nowhere")) == []


async def test_the_messages_that_were_found_are_given_word_for_word(cwm: Gateway) -> None:
    search = Search(History(cwm.registry, cwm.thaw.journal))
    page = await search(ANN, "4711", TurnSource(session_id="s1"), whole=True)
    assert [each.content for each in page.findings] == [SAID[1].content]
    page = await search(ANN, "number", limit=2, whole=True)
    assert [(each.content or {}).get("content") for each in page.findings] == [
        "A number of another session.",
        "No whole number.",
    ]


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
async def test_pages_follow_each_other_without_gap_or_repetition(cwm: Gateway, limit: int) -> None:
    search, cursor, found = Search(History(cwm.registry, cwm.thaw.journal)), None, []
    while True:
        page = await search(ANN, "number", None, limit, cursor)
        found += excerpts(page)
        cursor = page.next_cursor
        if cursor is None:
            break
        assert len(page.findings) == limit
    assert found == EVERYTHING


async def test_one_call_reads_so_many_messages_and_says_where_to_go_on(
    cwm: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "_MOST_MESSAGES", 1)
    search = Search(History(cwm.registry, cwm.thaw.journal))
    first = await search(ANN, "4711")
    assert (first.findings, first.searched) == ([], 2)
    second = await search(ANN, "4711", cursor=first.next_cursor)
    assert excerpts(second) == [("s1", 1, "The number is 4711.")]
    last = await search(ANN, "4711", cursor=second.next_cursor)
    assert (last.findings, last.searched, last.next_cursor) == ([], 0, None)


async def test_a_session_or_the_context_of_a_window_is_searched_alone(cwm: Gateway) -> None:
    search = Search(History(cwm.registry, cwm.thaw.journal))
    assert excerpts(await search(ANN, "number", TurnSource(session_id="s1"))) == EVERYTHING[1:]
    assert excerpts(await search(ANN, "number", TurnSource(window_name="w1"))) == EVERYTHING[2:]
    with pytest.raises(SessionNotFoundError):
        await search(ANN, "number", TurnSource(session_id="theirs"))
    with pytest.raises(WindowNotFoundError):
        await search(ANN, "number", TurnSource(window_name="nobody"))


async def test_what_one_may_not_read_is_not_found_and_reads_of_others_are_audited(cwm: Gateway) -> None:
    await cwm.open_session(BOB, "private", visibility="private")
    await cwm.generate(BOB, "private", TurnInput(text="A private number.", max_tokens=2))
    search = Search(History(cwm.registry, cwm.thaw.journal))
    assert excerpts(await search(ANN, "number")) == EVERYTHING
    assert excerpts(await search(BOB, "private")) == [("private", 1, "A private number.")]
    reader = Principal("acme", "auditor", frozenset({AccessScope.OTHERS_READ}))
    page = await search(reader, "number", None, 1)
    assert excerpts(page) == [("private", 1, "A private number.")]
    assert ("security.shared_access", "success") in await cwm.events()
    assert (
        excerpts(await search(ANN, "number", None, 20, str(SearchMark.parse(page.next_cursor or ""))))
        == EVERYTHING
    )
    first = await search(BOB, "number", None, 2)
    assert excerpts(await search(ANN, "private", cursor=first.next_cursor)) == []


async def test_what_is_not_kept_is_not_found(cwm: Gateway) -> None:
    cwm.turns.keep = KeepPolicies(KeepPolicy(messages=False))
    turn: Turn = await took(cwm, (60, 61, 62), messages=[user("A secret number.")], text="Hush.")
    assert turn.total_tokens
    assert excerpts(await Search(History(cwm.registry, cwm.thaw.journal))(ANN, "secret")) == []


@pytest.mark.parametrize(("limit", "cursor"), [(0, None), (101, None), (1, "tomorrow")])
async def test_a_page_is_bounded_and_a_cursor_is_an_earlier_ones(
    cwm: Gateway, limit: int, cursor: str | None
) -> None:
    with pytest.raises(InvalidParameterError):
        await Search(History(cwm.registry, cwm.thaw.journal))(ANN, "number", None, limit, cursor)
