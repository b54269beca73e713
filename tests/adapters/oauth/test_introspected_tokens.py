"""Opaque tokens, made-up ones among them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cwm.adapters.oauth.claims import Expected
from cwm.adapters.oauth.fetch import Fetch
from cwm.adapters.oauth.introspected_tokens import IntrospectedTokens
from cwm.domain.errors import AuthorityUnavailableError, UnauthenticatedError
from tests.adapters.oauth.authority import AUDIENCE, Authority, authority
from tests.origins import coming_from

pytestmark = pytest.mark.slow


@pytest.fixture
async def issuer() -> AsyncIterator[Authority]:
    async with authority() as asked:
        for token in ("alice", "bob"):
            asked.known[token] = {"active": True, **asked.claims(sub=token)}
        yield asked


@pytest.fixture
async def tokens(issuer: Authority) -> AsyncIterator[IntrospectedTokens]:
    fetch = Fetch(seconds=10)
    expected = Expected(issuer.issuer, (AUDIENCE,), 30)
    client = ("gateway", "secret")
    made = IntrospectedTokens(f"{issuer.issuer}/introspect", client, fetch, expected, issuer.clock, 10.0)
    yield made
    await made.aclose()
    await fetch.aclose()


@pytest.mark.parametrize(
    "addresses",
    [["192.0.2.1"], [f"2001:db8::{host:x}" for host in range(100)]],
    ids=["one address", "one network"],
)
async def test_made_up_tokens_of_one_stranger_keep_nobody_elses_from_being_asked_for(
    issuer: Authority, tokens: IntrospectedTokens, addresses: list[str]
) -> None:
    with coming_from("192.0.2.9"):
        await tokens.checked("alice")
    issuer.hold, issuer.began = asyncio.Event(), asyncio.Event()
    flood = []
    for number in range(100):
        with coming_from(addresses[number % len(addresses)]):
            flood.append(asyncio.create_task(tokens.checked(f"made-up-{number}")))
    async with asyncio.timeout(10):
        await issuer.began.wait()
    with coming_from("192.0.2.9"):
        assert (await tokens.checked("alice")).subject == "alice"
        asking = asyncio.create_task(tokens.checked("bob"))
    issuer.hold.set()
    assert (await asking).subject == "bob"
    told = [type(each) for each in await asyncio.gather(*flood, return_exceptions=True)]
    assert told.count(UnauthenticatedError) == 16
    assert told.count(AuthorityUnavailableError) == 84


async def test_made_up_tokens_push_no_good_one_out_of_memory(
    issuer: Authority, tokens: IntrospectedTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cwm.adapters.oauth.introspected_tokens._MOST_REMEMBERED", 8)
    await tokens.checked("alice")
    for number in range(9):
        with pytest.raises(UnauthenticatedError):
            await tokens.checked(f"made-up-{number}")
    asked = issuer.asked["/introspect"]
    assert (await tokens.checked("alice")).subject == "alice"
    with pytest.raises(UnauthenticatedError):
        await tokens.checked("made-up-8")
    assert issuer.asked["/introspect"] == asked


async def test_a_token_that_was_revoked_is_refused_when_it_is_asked_for_again(
    issuer: Authority, tokens: IntrospectedTokens
) -> None:
    await tokens.checked("alice")
    del issuer.known["alice"]
    issuer.clock.passed += 11
    for _ in range(2):
        with pytest.raises(UnauthenticatedError):
            await tokens.checked("alice")


async def test_a_token_that_is_bound_to_a_key_is_refused_as_a_bearer(
    issuer: Authority, tokens: IntrospectedTokens
) -> None:
    issuer.known["carol"] = {"active": True, **issuer.claims(sub="carol"), "cnf": {"jkt": "thumbprint"}}
    with pytest.raises(UnauthenticatedError) as refusal:
        await tokens.checked("carol")
    assert refusal.value.why == "bound_to_a_key"
