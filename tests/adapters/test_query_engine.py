"""Expressions of others: what they find, and that none of them takes more than it may."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from cwm.adapters.local.query_engine import LocalQueryEngine
from cwm.domain.errors import InvalidParameterError
from cwm.domain.result_query import Span

pytestmark = pytest.mark.slow

DOCUMENT = {"items": [{"id": n, "name": f"n{n}", "tags": ["a", "b"]} for n in range(5)], "é": 1.5}


@pytest.fixture
def engine() -> LocalQueryEngine:
    return LocalQueryEngine()


async def value(engine: LocalQueryEngine, expression: str, document: Any = DOCUMENT) -> Any:
    return json.loads(await engine.jmespath(json.dumps(document).encode(), expression))


async def test_an_expression_makes_json(engine: LocalQueryEngine) -> None:
    assert await value(engine, "items[?id > `2`].name") == ["n3", "n4"]
    assert await value(engine, "nothing") is None
    assert await value(engine, '"é"') == 1.5
    assert await engine.jmespath('{"a": "漢\\n"}'.encode(), "[a, a]") == '["漢\\n","漢\\n"]'.encode()


async def test_half_of_a_surrogate_pair_is_spelled(engine: LocalQueryEngine) -> None:
    assert await engine.jmespath(b'["\\ud800", "x"]', "@") == b'["\\ud800","x"]'


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("items[", "Invalid jmespath expression"),
        ("nope(@)", "Unknown function"),
        ("length(`1`)", "invalid type"),
        ("items[?", ""),
        ("\ud800", ""),
        ("sort_by(items, &tags)", ""),
    ],
)
async def test_an_expression_that_is_none_says_why(
    engine: LocalQueryEngine, expression: str, why: str
) -> None:
    with pytest.raises(InvalidParameterError, match="jmespath: ") as refused:
        await value(engine, expression)
    assert why in refused.value.message
    assert refused.value.context == {"field": "jmespath"}


@pytest.mark.parametrize("document", [b"{", b"\xff", b"[" * 100_000])
async def test_a_document_that_is_none_is_told(engine: LocalQueryEngine, document: bytes) -> None:
    with pytest.raises(InvalidParameterError, match="cannot be read as JSON"):
        await engine.jmespath(document, "@")


@pytest.mark.parametrize(
    "expression",
    [
        "|".join(["[@,@]"] * 60),
        "|".join(["[@,@][]"] * 60),
        "to_string([" * 40 + "@" + "])" * 40,
        f"({'|'.join(['[@,@]'] * 40)}) == ({'|'.join(['[@,@]'] * 40)})",
        "[" * 450 + "@" + "]" * 450,
    ],
    ids=["nested", "flattened", "escaped", "compared", "deep"],
)
async def test_an_expression_that_multiplies_is_ended(expression: str) -> None:
    engine = LocalQueryEngine(cpu_seconds=1, memory_bytes=256 * 2**20)
    with pytest.raises(InvalidParameterError, match=r"narrow|cannot be evaluated"):
        await value(engine, expression)


async def test_a_caller_that_leaves_takes_the_process_along(engine: LocalQueryEngine) -> None:
    expression = "|".join(["[@,@][]"] * 60)
    asking = asyncio.create_task(value(engine, expression))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await asking
    assert asking.cancelled()
    assert await value(engine, "length(items)") == 5


async def found(engine: LocalQueryEngine, text: str, pattern: str, limit: int = 100) -> list[str]:
    body = text.encode()
    matches = await engine.matches(body, pattern, limit)
    return [body[span.start : span.end].decode() for span in matches.spans]


async def test_a_pattern_matches_characters_and_lines(engine: LocalQueryEngine) -> None:
    assert await found(engine, "caf\u00e9 th\u00e9\n", "\\w\u00e9") == ["f\u00e9", "h\u00e9"]
    assert await found(engine, "a漢b", "a.b") == ["a漢b"]
    assert await found(engine, "one\ntwo\n", "^two$") == ["two"]
    assert await found(engine, "One one", "(?i)ONE") == ["One", "one"]
    assert (await engine.matches("é1".encode(), "1", 9)).spans == (Span(2, 3),)


async def test_no_more_matches_are_told_than_asked_for(engine: LocalQueryEngine) -> None:
    some = await engine.matches(b"a" * 10, "a", 3)
    assert (len(some.spans), some.complete) == (3, False)
    assert (await engine.matches(b"aaa", "a", 3)).complete


async def test_words_are_found_as_they_stand_whatever_their_case(engine: LocalQueryEngine) -> None:
    assert (await engine.found(b"x A.*B a.*b axxb", "a.*b", 9)).spans == (Span(2, 6), Span(7, 11))
    assert (await engine.found("ÄRGER ärger".encode(), "Ärger", 9)).spans == (Span(0, 6), Span(7, 13))


@pytest.mark.parametrize("pattern", ["(", "a(?=b)", r"(a)\1", "(a{1,100}){1,100}{1,100}", "\\p{Nope}"])
async def test_a_pattern_that_is_none_says_why(engine: LocalQueryEngine, pattern: str) -> None:
    with pytest.raises(InvalidParameterError, match=r"regex: .+"):
        await engine.matches(b"text", pattern, 9)


async def test_no_pattern_takes_longer_than_the_text(engine: LocalQueryEngine) -> None:
    """Each of these takes for ever where a matcher goes back."""
    text = b"a" * 100_000
    for pattern in ("(a+)+b", "(a|aa)+b", "(a*)*b", "(.*a){20}b"):
        assert (await engine.matches(text, pattern, 9)).spans == ()


async def test_matches_that_take_too_long_together_are_ended() -> None:
    impatient = LocalQueryEngine(wall_seconds=0.0)
    with pytest.raises(InvalidParameterError, match="too much time"):
        await impatient.matches(b"aaa", "a", 9)


async def test_a_search_and_the_work_in_the_loops_own_threads_do_not_wait_for_each_other(
    engine: LocalQueryEngine,
) -> None:
    loop, end = asyncio.get_running_loop(), Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    held = loop.run_in_executor(None, end.wait)
    try:
        assert await found(engine, "text", "t") == ["t", "t"]
    finally:
        end.set()
        await held
