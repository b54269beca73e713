"""Stored results: what is read is what was kept, by whom it may be, for as long as it lasts."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.adapters.tokens.bpe import BpeTokenCounter
from cwm.domain.cursor import Cursors
from cwm.domain.errors import (
    CwmError,
    InvalidParameterError,
    ResultNotFoundError,
    StorageQuotaExceededError,
    StorageWriteError,
)
from cwm.domain.principal import Principal
from cwm.domain.results import ABOUT_TYPE, Part, PartKind, handle_of
from cwm.domain.tool_policy import ToolPolicy
from cwm.services.results.results import Page, holder_of
from tests.services.kept import ANN, BOB, EVE, POLICY, AwayOnce, Desk, FullContents, InMemory, opened, part_of
from tests.services.replicas_of import HandClock

pytestmark = pytest.mark.slow

LOG = "".join(f"line {number} of the log, é and 漢\n" for number in range(300))
BUDGET = 10_000


@pytest.fixture
async def one(shared_store_url: str, sqlite_url: str) -> AsyncIterator[Desk]:
    async with opened(shared_store_url, sqlite_url, HandClock(4_000_000_000.0)) as gateway:
        yield gateway


@pytest.fixture
async def other(shared_store_url: str, sqlite_url: str, one: Desk) -> AsyncIterator[Desk]:
    """A gateway that shares the store and nothing else."""
    async with opened(shared_store_url, sqlite_url, one.clock) as gateway:
        yield gateway


async def code_of(asked: Any) -> str:
    with pytest.raises(CwmError) as refused:
        await asked
    return refused.value.code


async def reason_of(asked: Any) -> str:
    with pytest.raises(InvalidParameterError) as refused:
        await asked
    return str(refused.value.context["reason"])


async def all_pages(one: Desk, first: Page, principal: Principal = ANN, budget: int = BUDGET) -> list[Page]:
    pages = [first]
    while pages[-1].next_cursor is not None:
        cursor = pages[-1].next_cursor
        pages.append(await one.results.read(principal, cursor=cursor, budget_tokens=budget))
    return pages


def body_of(pages: list[Page], part: int = 0) -> bytes:
    texts = [page.text for page in pages if page.part == part]
    if pages[0].result.parts[part].kind is PartKind.BINARY:
        return b"".join(base64.b64decode(text) for text in texts)
    return "".join(texts).encode()


async def test_a_handle_is_short_and_never_given_twice(one: Desk) -> None:
    handles = {(await one.keep("text")).handle for _ in range(20)}
    assert len(handles) == 20
    assert {len(handle) for handle in handles} == {24}
    assert all(handle.startswith("r_") for handle in handles)


async def test_a_part_comes_back_as_it_was(one: Desk) -> None:
    result = await one.keep('{"a": 1}', LOG, b"\x00\xff")
    assert await one.results.whole(ANN, result.handle, 1) == [Part(PartKind.TEXT, "text/plain", LOG.encode())]
    assert (await one.results.whole(ANN, result.handle, 2))[0].body == b"\x00\xff"
    assert result.size == 8 + len(LOG.encode()) + 2


async def test_pages_by_number_and_by_cursor_are_the_same_and_make_the_original(one: Desk) -> None:
    result = await one.keep(LOG)
    first = await one.results.read(ANN, handle=result.handle, budget_tokens=BUDGET)
    pages = await all_pages(one, first)
    assert len(pages) == first.pages > 10
    assert body_of(pages) == LOG.encode()
    assert [page.page for page in pages] == list(range(1, first.pages + 1))
    assert all(60 <= page.tokens <= 115 for page in pages[:-1])
    for page in pages:
        again = await one.results.read(ANN, handle=result.handle, page=page.page, budget_tokens=BUDGET)
        assert again == page


async def test_cursors_lead_through_every_part(one: Desk) -> None:
    bodies: list[str | bytes] = ['{"a": "' + "x" * 900 + '"}', LOG, bytes(range(256)) * 9, ""]
    result = await one.keep(*bodies)
    pages = await all_pages(one, await one.results.read(ANN, handle=result.handle, budget_tokens=BUDGET))
    assert [body_of(pages, part) for part in range(4)] == [
        str(bodies[0]).encode(),
        LOG.encode(),
        bodies[2],
        b"",
    ]


async def test_a_tight_budget_gives_less_of_a_page_and_goes_on_in_it(one: Desk) -> None:
    result = await one.keep(LOG)
    first = await one.results.read(ANN, handle=result.handle, page=2, budget_tokens=30)
    assert first.tokens <= 30
    pages = await all_pages(one, first, budget=30)
    assert pages[1].page == 2
    assert body_of(pages) == LOG.encode()[first.start :]
    assert all(page.tokens <= 30 for page in pages)


bodies = st.one_of(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=80,
    ).map(lambda value: json.dumps([value], ensure_ascii=False)),
    st.lists(
        st.sampled_from(["\n", "é" * 90, "👩🏽\u200d🚀", "e\u0301", "x" * 300, "\x00"]), max_size=40
    ).map("".join),
    st.binary(max_size=3_000),
)


@given(st.lists(bodies, min_size=1, max_size=3), st.integers(5, 200))
def test_whatever_was_kept_is_read_byte_for_byte(kept: list[str | bytes], budget: int) -> None:
    async def read() -> None:
        one = InMemory().desk()
        result = await one.keep(*kept)
        first = await one.results.read(ANN, handle=result.handle, budget_tokens=budget)
        pages = await all_pages(one, first, budget=budget)
        for part, body in enumerate(kept):
            assert body_of(pages, part) == (body.encode() if isinstance(body, str) else body)

    asyncio.run(read())


async def test_a_text_that_is_no_utf8_is_read_as_bytes(one: Desk) -> None:
    part = Part(PartKind.TEXT, "text/plain", b"caf\xe9" * 100)
    result = await one.results.keep(ANN, "docs_read", "a1", [part], POLICY)
    pages = await all_pages(one, await one.results.read(ANN, handle=result.handle, budget_tokens=BUDGET))
    assert (result.parts[0].kind, result.parts[0].media_type) == (PartKind.BINARY, "text/plain")
    assert body_of(pages) == part.body


async def test_unknown_expired_foreign_and_malformed_handles_get_the_same_answer(one: Desk) -> None:
    result = await one.keep("text")
    expired = await one.keep("text", policy=replace(POLICY, result_ttl_seconds=1))
    lost = await one.keep("lost")
    await one.results.contents.let_go("acme", lost.parts[0].digest, holder_of(lost))
    one.clock.seconds += 1
    answers = set()
    for principal, handle in (
        (ANN, handle_of(bytes(16))),
        (ANN, expired.handle),
        (BOB, result.handle),
        (EVE, result.handle),
        (ANN, "r_:" + "x" * 21),
        (ANN, ""),
        (ANN, lost.handle),
    ):
        with pytest.raises(ResultNotFoundError) as refused:
            await one.results.whole(principal, handle, 0)
        answers.add(json.dumps(refused.value.as_dict()))
    assert len(answers) == 1
    assert "CWM-2005" in answers.pop()


async def test_a_shared_result_is_the_tenants_and_no_other_tenants(one: Desk) -> None:
    result = await one.keep(LOG, policy=replace(POLICY, shared=True))
    pages = await all_pages(one, await one.results.read(BOB, handle=result.handle, budget_tokens=BUDGET), BOB)
    assert body_of(pages) == LOG.encode()
    assert await code_of(one.results.read(EVE, handle=result.handle, budget_tokens=BUDGET)) == "CWM-2005"


async def test_a_cursor_of_a_shared_result_is_its_readers_alone(one: Desk) -> None:
    result = await one.keep(LOG, policy=replace(POLICY, shared=True))
    cursor = (await one.results.read(BOB, handle=result.handle, budget_tokens=BUDGET)).next_cursor
    for principal in (ANN, EVE):
        read = one.results.read(principal, cursor=cursor, budget_tokens=BUDGET)
        assert await reason_of(read) == "foreign"


async def test_a_cursor_expires_and_the_handle_goes_on(one: Desk) -> None:
    result = await one.keep(LOG)
    first = await one.results.read(ANN, handle=result.handle, budget_tokens=BUDGET)
    one.clock.seconds += 600
    late = one.results.read(ANN, cursor=first.next_cursor, budget_tokens=BUDGET)
    assert await reason_of(late) == "expired"
    assert (await one.results.read(ANN, handle=result.handle, page=2, budget_tokens=BUDGET)).page == 2


async def test_a_cursor_lasts_no_longer_than_its_result(one: Desk) -> None:
    result = await one.keep(LOG, policy=replace(POLICY, result_ttl_seconds=60))
    first = await one.results.read(ANN, handle=result.handle, budget_tokens=BUDGET)
    one.clock.seconds += 60
    late = one.results.read(ANN, cursor=first.next_cursor, budget_tokens=BUDGET)
    assert await reason_of(late) == "expired"


async def test_a_cursor_of_a_forgotten_result_says_not_found(one: Desk) -> None:
    result = await one.keep(LOG)
    first = await one.results.read(ANN, handle=result.handle, budget_tokens=BUDGET)
    await one.results.forget(result)
    read = one.results.read(ANN, cursor=first.next_cursor, budget_tokens=BUDGET)
    assert await code_of(read) == "CWM-2005"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"cursor": "x", "handle": "y"},
        {"cursor": "x"},
        {"page": 0},
        {"page": 10_000},
        {"part": 1},
        {"part": -1},
    ],
)
async def test_what_cannot_be_read_is_a_wrong_parameter(one: Desk, given: dict[str, Any]) -> None:
    result = await one.keep(LOG)
    if given.keys() & {"page", "part"}:
        given = {**given, "handle": result.handle}
    assert await code_of(one.results.read(ANN, **given, budget_tokens=BUDGET)) == "CWM-1003"


async def test_a_result_is_read_on_by_another_gateway(one: Desk, other: Desk) -> None:
    result = await one.keep(LOG)
    pages = [await one.results.read(ANN, handle=result.handle, budget_tokens=BUDGET)]
    while pages[-1].next_cursor is not None:
        reader = (one, other)[len(pages) % 2]
        pages.append(await reader.results.read(ANN, cursor=pages[-1].next_cursor, budget_tokens=BUDGET))
    assert body_of(pages) == LOG.encode()


async def test_a_cursor_outlasts_a_change_of_the_secret_and_no_second_one(one: Desk, other: Desk) -> None:
    result = await one.keep(LOG)
    cursor = (await one.results.read(ANN, handle=result.handle, budget_tokens=BUDGET)).next_cursor
    changed = other.with_(cursors=Cursors([b"a new secret", b"a secret"]))
    assert (await changed.results.read(ANN, cursor=cursor, budget_tokens=BUDGET)).page == 2
    stranger = other.with_(cursors=Cursors([b"the newest", b"a new secret"]))
    read = stranger.results.read(ANN, cursor=cursor, budget_tokens=BUDGET)
    assert await reason_of(read) == "malformed"


async def test_a_quota_refuses_and_keeps_nothing(one: Desk) -> None:
    bounded = one.with_(quota_bytes=1_000)
    first = await bounded.keep("x" * 900)
    with pytest.raises(StorageQuotaExceededError) as refused:
        await bounded.keep("y" * 101)
    assert (refused.value.code, refused.value.context["quota_bytes"]) == ("CWM-4003", 1_000)
    assert (await one.results.records.use("acme", "ann", one.clock.now())).size_bytes == 900
    assert await one.results.contents.read("acme", hashlib.sha256(b"y" * 101).hexdigest()) is None
    await bounded.keep("y" * 101, principal=BOB)
    assert (await one.results.whole(ANN, first.handle, 0))[0].body == b"x" * 900


async def test_what_could_not_be_kept_whole_is_not_kept_at_all(one: Desk) -> None:
    with pytest.raises(StorageWriteError):
        await one.with_(contents=FullContents()).keep("x" * 900)
    assert (await one.results.records.use("acme", "ann", one.clock.now())).size_bytes == 0


async def test_expired_results_are_forgotten_with_all_that_they_held(one: Desk) -> None:
    same, short = "the same text", replace(POLICY, result_ttl_seconds=1)
    for _ in range(3):
        await one.keep(same, same, policy=short)
    alone = await one.keep("nobody else has this", policy=short)
    theirs = await one.keep("theirs", principal=EVE, policy=short)
    kept = await one.keep(same)
    one.clock.seconds += 5
    assert await one.results.forget_expired() == 5
    assert await one.results.forget_expired() == 0
    for gone in (alone, theirs):
        assert await one.results.records.find(gone.tenant, gone.handle) is None
        assert await one.results.contents.read(gone.tenant, gone.parts[0].digest) is None
    assert (await one.results.whole(ANN, kept.handle, 0))[0].body == same.encode()


async def test_a_sweep_goes_on_when_a_store_was_away(one: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    await one.keep("text", policy=replace(POLICY, result_ttl_seconds=1))
    one.clock.seconds += 5
    monkeypatch.setattr("cwm.services.results.results._SWEEP_SECONDS", 0)
    records = AwayOnce(one.results.records)
    sweeping = asyncio.create_task(one.with_(records=records).results.sweep())
    async with asyncio.timeout(10):
        await records.forgotten.wait()
    sweeping.cancel()
    with suppress(asyncio.CancelledError):
        await sweeping


async def test_a_reference_leads_into_the_first_part_that_is_json(one: Desk) -> None:
    value = {"items": [{"name": "é"}], "n": 1.5}
    result = await one.keep("a text", json.dumps(value), '{"other": 1}')
    resolve = one.results.resolve
    assert await resolve(ANN, result.handle, "") == value
    assert await resolve(ANN, result.handle, "/items/0/name") == "é"
    assert await resolve(ANN, result.handle, "/other", part=2) == 1
    assert await resolve(ANN, result.handle, "", part=0) == "a text"
    assert await code_of(resolve(ANN, result.handle, "/nothing")) == "CWM-1003"
    assert await code_of(resolve(ANN, result.handle, "/a", part=0)) == "CWM-1003"
    assert await code_of(resolve(BOB, result.handle, "")) == "CWM-2005"


async def test_a_reference_to_a_result_without_json_is_its_text_or_base64(one: Desk) -> None:
    text, binary = await one.keep(LOG), await one.keep(bytes(range(256)))
    assert await one.results.resolve(ANN, text.handle, "") == LOG
    assert await one.results.resolve(ANN, binary.handle, "") == base64.b64encode(bytes(range(256))).decode()


async def test_a_reference_does_not_lead_into_what_is_said_about_an_answer(one: Desk) -> None:
    about = Part(PartKind.JSON, ABOUT_TYPE, b'{"_meta": {"a": 1}}')
    result = await one.results.keep(ANN, "docs_read", "a1", [part_of(LOG), about], POLICY)
    assert await one.results.resolve(ANN, result.handle, "") == LOG
    assert await code_of(one.results.resolve(ANN, result.handle, "/_meta")) == "CWM-1003"
    assert await one.results.resolve(ANN, result.handle, "/_meta/a", part=1) == 1


async def test_a_reference_into_large_json_leads_there_too(one: Desk) -> None:
    result = await one.keep(json.dumps({"rows": [{"n": n} for n in range(20_000)]}))
    assert await one.results.resolve(ANN, result.handle, "/rows/19999") == {"n": 19_999}


async def test_json_nested_too_deeply_is_refused_in_a_sentence(one: Desk) -> None:
    result = await one.keep("[" * 100_000)
    assert await code_of(one.results.resolve(ANN, result.handle, "/0")) == "CWM-1003"


TEXTS = {
    "json": json.dumps([{"id": n, "name": f"user {n}", "mail": f"u{n}@example.com"} for n in range(2_000)]),
    "cjk": "快速的棕色狐狸跳过懒狗。这是一个用于检查分页的文本。\n" * 2_000,
    "prose": "The quick brown fox jumps over the lazy dog and then wonders what to do next. " * 2_000,
    "base64": base64.b64encode(bytes(n * n % 251 for n in range(60_000))).decode(),
    "log": "".join(f"2026-03-01T12:00:{n % 60:02d}Z INFO request id={n * 7919:x}\n" for n in range(3_000)),
}


@pytest.mark.parametrize("kind", TEXTS)
async def test_in_a_real_vocabulary_pages_take_about_what_a_preview_may(kind: str) -> None:
    one = InMemory().desk().with_(tokens=BpeTokenCounter())
    parts = [Part(PartKind.TEXT, "text/plain", TEXTS[kind].encode())]
    result = await one.results.keep(ANN, "docs_read", "a1", parts, ToolPolicy(preview_tokens=2_000))
    pages = await all_pages(one, await one.results.read(ANN, handle=result.handle, budget_tokens=BUDGET))
    assert body_of(pages) == TEXTS[kind].encode()
    assert all(1_700 <= page.tokens <= 2_200 for page in pages[:-1])
