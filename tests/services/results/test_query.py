"""Questions to stored results: the answer is the same whoever works it out, and never more than was asked for."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from cwm.adapters.local.query_engine import LocalQueryEngine
from cwm.domain.errors import CwmError
from cwm.domain.principal import Principal
from cwm.domain.result_query import Query, QueryKind
from cwm.services.results.query import MAX_MATCHES, AnswerPage, QueryResult
from cwm.services.results.query_slots import QuerySlots
from tests.services.kept import ANN, BOB, Desk, opened
from tests.services.replicas_of import HandClock

ROWS = {"items": [{"id": n, "name": f"row {n}", "city": "Köln"} for n in range(200)], "total": 200}
LOG = "".join(f"{n} {'ERROR' if n % 50 == 0 else 'info'} something happened\n" for n in range(400))


@dataclass(frozen=True, slots=True)
class Asking:
    one: Desk
    query_result: QueryResult
    handle: str

    async def __call__(
        self,
        kind: QueryKind,
        argument: str | int,
        context: int = 0,
        *,
        handle: str | None = None,
        part: int = 0,
        budget: int = 10_000,
        cursor: str | None = None,
        principal: Principal = ANN,
    ) -> AnswerPage:
        return await self.query_result(
            principal,
            handle or self.handle,
            Query(kind, argument, context),
            part=part,
            budget_tokens=budget,
            cursor=cursor,
        )

    async def whole(self, kind: QueryKind, argument: str | int, **options: Any) -> tuple[str, int]:
        """All pieces of an answer put together, and how many there were."""
        pieces = [await self(kind, argument, **options)]
        while pieces[-1].next_cursor is not None:
            pieces.append(await self(kind, argument, **options, cursor=pieces[-1].next_cursor))
        return "".join(piece.text for piece in pieces), len(pieces)


@pytest.fixture
async def ask(sqlite_url: str) -> AsyncIterator[Asking]:
    """Of a result with JSON, a log, and an image."""
    async with opened(sqlite_url, sqlite_url, HandClock(4_000_000_000.0)) as one:
        result = await one.keep(json.dumps(ROWS, ensure_ascii=False), LOG, b"\x89PNG")
        yield Asking(one, QueryResult(one.results, LocalQueryEngine()), result.handle)


async def refused(asked: Any) -> CwmError:
    with pytest.raises(CwmError) as error:
        await asked
    return error.value


async def test_jmespath_answers_json(ask: Asking) -> None:
    answer = await ask(QueryKind.JMESPATH, "items[?id >= `198`].{n: name, c: city}")
    assert answer.text == '[{"n":"row 198","c":"Köln"},{"n":"row 199","c":"Köln"}]'
    assert (answer.total, answer.complete, answer.next_cursor) == (2, True, None)


async def test_a_query_waits_for_those_of_its_own_tenant_alone(ask: Asking) -> None:
    slots = QuerySlots(2, wait_seconds=0.05)
    asking = Asking(ask.one, QueryResult(ask.one.results, LocalQueryEngine(), slots, slots), ask.handle)
    async with slots.slot("another tenant"):
        assert (await asking(QueryKind.JMESPATH, "length(items)")).text == "200"
    async with slots.slot(ANN.tenant):
        for kind, argument in ((QueryKind.JMESPATH, "length(items)"), (QueryKind.SEARCH, "row 7")):
            assert (await refused(asking(kind, argument))).code == "CWM-7002"
        assert (await asking(QueryKind.JSON_POINTER, "/items/3/name")).text == '"row 3"'


async def test_a_json_pointer_answers_the_value(ask: Asking) -> None:
    assert (await ask(QueryKind.JSON_POINTER, "/items/3/name")).text == '"row 3"'
    assert (await ask(QueryKind.JSON_POINTER, "/items")).total == 200
    whole = await ask(QueryKind.JSON_POINTER, "")
    assert json.loads(whole.text) == ROWS


async def test_regex_and_search_answer_lines(ask: Asking) -> None:
    by_pattern = await ask(QueryKind.REGEX, r"^\d+ ERROR", part=1)
    by_words = await ask(QueryKind.SEARCH, "error", part=1)
    assert by_pattern.text == by_words.text
    assert by_pattern.text.splitlines()[1] == "51:50 ERROR something happened"
    assert by_pattern.total == 8
    around = await ask(QueryKind.SEARCH, "error", 1, part=1)
    assert around.text.splitlines()[:4] == [
        "1:0 ERROR something happened",
        "2-1 info something happened",
        "--",
        "50-49 info something happened",
    ]


async def test_in_json_of_one_line_what_is_around_each_match_is_shown(ask: Asking) -> None:
    answer = await ask(QueryKind.SEARCH, '"row 42"')
    assert answer.total == 1
    assert answer.text.startswith("1:")
    assert '"id": 42, "name": "row 42"' in answer.text
    assert len(answer.text) < 400


async def test_matches_are_told_up_to_a_bound(ask: Asking) -> None:
    answer = await ask(QueryKind.REGEX, "[a-z]", part=1, budget=100)
    assert (answer.total, answer.complete) == (MAX_MATCHES, False)


async def test_head_and_tail_answer_lines_as_they_are(ask: Asking) -> None:
    head, tail = await ask(QueryKind.HEAD, 2, part=1), await ask(QueryKind.TAIL, 1, part=1)
    assert head.text == "0 ERROR something happened\n1 info something happened\n"
    assert tail.text == "399 info something happened\n"
    assert head.total == tail.total == 400


@pytest.mark.parametrize(
    ("counted", "part", "total"),
    [
        ("lines", 1, 400),
        ("bytes", 1, len(LOG)),
        ("bytes", 2, 4),
        ("items", 0, 2),
        ("characters", 0, len(json.dumps(ROWS, ensure_ascii=False))),
        ("tokens", 1, -(-len(LOG) // 4)),
    ],
)
async def test_count_answers_a_number(ask: Asking, counted: str, part: int, total: int) -> None:
    answer = await ask(QueryKind.COUNT, counted, part=part)
    assert (answer.text, answer.total) == (str(total), total)


@pytest.mark.parametrize(
    ("kind", "argument", "part"),
    [
        (QueryKind.JMESPATH, "items[*].name", 0),
        (QueryKind.JSON_POINTER, "/items", 0),
        (QueryKind.SEARCH, "info", 1),
        (QueryKind.HEAD, 300, 1),
    ],
)
async def test_an_answer_over_the_budget_comes_in_pieces_that_make_all_of_it(
    ask: Asking, kind: QueryKind, argument: str | int, part: int
) -> None:
    first = await ask(kind, argument, part=part, budget=100)
    assert first.tokens <= 100
    in_pieces, count = await ask.whole(kind, argument, part=part, budget=100)
    assert count > 3
    assert in_pieces == (await ask(kind, argument, part=part)).text
    assert len(in_pieces.encode()) == first.size


async def test_a_cursor_goes_on_with_its_own_query_alone(ask: Asking) -> None:
    cursor = (await ask(QueryKind.SEARCH, "info", part=1, budget=50)).next_cursor
    other = await ask.one.keep(LOG, LOG)
    asked = (
        ask(QueryKind.SEARCH, "happened", part=1, cursor=cursor),
        ask(QueryKind.REGEX, "info", part=1, cursor=cursor),
        ask(QueryKind.SEARCH, "info", 1, part=1, cursor=cursor),
        ask(QueryKind.SEARCH, "info", part=0, cursor=cursor),
        ask(QueryKind.SEARCH, "info", part=1, cursor=cursor, handle=other.handle),
        ask.one.results.read(ANN, cursor=cursor, budget_tokens=100),
    )
    for each in asked:
        error = await refused(each)
        assert (error.code, error.context["reason"]) == ("CWM-1003", "foreign")
    page = await ask.one.results.read(ANN, handle=ask.handle, budget_tokens=100)
    error = await refused(ask(QueryKind.SEARCH, "row", cursor=page.next_cursor))
    assert error.context["reason"] == "foreign"


@pytest.mark.parametrize(
    ("kind", "argument", "part"),
    [
        (QueryKind.JMESPATH, "@", 1),
        (QueryKind.JSON_POINTER, "", 2),
        (QueryKind.COUNT, "items", 1),
        (QueryKind.SEARCH, "x", 2),
        (QueryKind.HEAD, 1, 2),
        (QueryKind.COUNT, "lines", 2),
        (QueryKind.JMESPATH, "items[", 0),
        (QueryKind.REGEX, "(", 1),
        (QueryKind.JSON_POINTER, "/nothing", 0),
        (QueryKind.HEAD, 1, 3),
    ],
)
async def test_a_query_that_does_not_suit_the_part_is_refused(
    ask: Asking, kind: QueryKind, argument: str | int, part: int
) -> None:
    assert (await refused(ask(kind, argument, part=part))).code == "CWM-1003"


async def test_only_who_may_read_may_ask(ask: Asking) -> None:
    error = await refused(ask(QueryKind.COUNT, "bytes", principal=BOB))
    assert error.code == "CWM-2005"
