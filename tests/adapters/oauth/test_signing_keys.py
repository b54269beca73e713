"""Keys change, and the server that has them is down, slow or lying."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from joserfc.jwk import OctKey
from starlette.responses import Response

from cwm.adapters.oauth.fetch import Fetch
from cwm.adapters.oauth.signing_keys import FRESH_SECONDS, THROTTLE_SECONDS, SigningKeys
from cwm.domain.errors import AuthorityUnavailableError
from tests.adapters.oauth.authority import Authority, as_json, authority, ec, rsa, weak_rsa

pytestmark = pytest.mark.slow

MAX_AGE = 3600.0
DISCOVERY = "/.well-known/openid-configuration"


@pytest.fixture
async def issuer() -> AsyncIterator[Authority]:
    async with authority() as asked:
        yield asked


@pytest.fixture
async def keys(issuer: Authority) -> AsyncIterator[SigningKeys]:
    fetch = Fetch(seconds=0.5)
    made = SigningKeys(issuer.issuer, None, fetch, issuer.clock, MAX_AGE)
    yield made
    await made.aclose()
    await fetch.aclose()


async def test_a_new_key_is_found_at_once_and_an_old_one_forgotten(
    issuer: Authority, keys: SigningKeys
) -> None:
    assert await keys.find("first", "RS256") is not None
    issuer.keys[:] = [rsa("second")]
    issuer.clock.passed += THROTTLE_SECONDS
    assert await keys.find("second", "RS256") is not None
    assert await keys.find("first", "RS256") is None


async def test_a_key_that_was_withdrawn_is_good_for_minutes_only(
    issuer: Authority, keys: SigningKeys
) -> None:
    await keys.find("first", "RS256")
    issuer.keys[:] = [rsa("second")]
    issuer.clock.passed += FRESH_SECONDS + 1
    assert await keys.find("first", "RS256") is None


async def test_made_up_names_of_keys_ask_no_more_than_every_ten_seconds(
    issuer: Authority, keys: SigningKeys
) -> None:
    await asyncio.gather(*(keys.find(f"made-up-{number}", "RS256") for number in range(50)))
    assert issuer.asked["/jwks"] == 1
    issuer.clock.passed += THROTTLE_SECONDS
    await asyncio.gather(*(keys.find(f"made-up-{number}", "RS256") for number in range(50)))
    assert issuer.asked["/jwks"] == 2


async def test_the_last_good_keys_go_on_for_a_bounded_time_while_the_server_is_down(
    issuer: Authority, keys: SigningKeys
) -> None:
    assert await keys.find("first", "RS256") is not None
    issuer.documents[DISCOVERY] = Response(status_code=500)
    issuer.clock.passed += MAX_AGE - 1
    assert await keys.find("first", "RS256") is not None
    issuer.clock.passed += 2
    with pytest.raises(AuthorityUnavailableError) as away:
        await keys.find("first", "RS256")
    assert away.value.retryable
    del issuer.documents[DISCOVERY]
    issuer.clock.passed += THROTTLE_SECONDS
    assert await keys.find("first", "RS256") is not None


async def test_while_the_server_is_down_a_key_that_may_be_new_is_not_called_unknown(
    issuer: Authority, keys: SigningKeys
) -> None:
    assert await keys.find("first", "RS256") is not None
    issuer.documents[DISCOVERY] = Response(status_code=500)
    issuer.clock.passed += THROTTLE_SECONDS
    for _ in range(2):
        with pytest.raises(AuthorityUnavailableError):
            await keys.find("second", "RS256")
    assert await keys.find("first", "RS256") is not None
    del issuer.documents[DISCOVERY]
    issuer.clock.passed += THROTTLE_SECONDS
    assert await keys.find("second", "RS256") is None


async def test_a_server_that_never_answers_is_not_waited_for(issuer: Authority, keys: SigningKeys) -> None:
    issuer.hold = asyncio.Event()
    waiting = [keys.find("first", "RS256") for _ in range(20)]
    told = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(each) for each in told} == {AuthorityUnavailableError}
    issuer.hold.set()
    issuer.clock.passed += THROTTLE_SECONDS
    assert await keys.find("first", "RS256") is not None


async def test_a_caller_that_leaves_does_not_take_the_reading_along(
    issuer: Authority, keys: SigningKeys
) -> None:
    issuer.hold = asyncio.Event()
    leaving = asyncio.create_task(keys.find("first", "RS256"))
    staying = asyncio.create_task(keys.find("first", "RS256"))
    async with asyncio.timeout(10):
        await issuer.began.wait()
    leaving.cancel()
    issuer.hold.set()
    assert await staying is not None
    assert issuer.asked[DISCOVERY] == 1


@pytest.mark.parametrize(
    "lie",
    [
        Response("<html>", media_type="text/html"),
        Response(b"\xff\xfe{}"),
        Response("[" * 100_000),
        Response(b'{"keys": [' + b'"x",' * 300_000 + b'""]}'),
        as_json([]),
        as_json({"keys": {"first": 1}}),
        as_json({"keys": []}),
        as_json(
            {"keys": [None, 7, {"kty": "RSA"}, {"kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": "first"}]}
        ),
        Response(status_code=302, headers={"location": "/jwks"}),
    ],
)
async def test_what_is_no_key_set_leaves_the_last_good_one(
    issuer: Authority, keys: SigningKeys, lie: Response
) -> None:
    assert await keys.find("first", "RS256") is not None
    issuer.documents["/jwks"] = lie
    issuer.clock.passed += FRESH_SECONDS + 1
    assert await keys.find("first", "RS256") is not None


@pytest.mark.parametrize(
    "lie",
    [
        {"issuer": "https://other.test", "jwks_uri": "{}/jwks"},
        {"issuer": "{}", "jwks_uri": "https://other.test/jwks"},
        {"issuer": "{}", "jwks_uri": "http://127.0.0.1:1/jwks"},
        {"issuer": "{}", "jwks_uri": "http://[/jwks"},
        {"issuer": "{}", "jwks_uri": "{}/jw\nks"},
        {"issuer": "{}", "jwks_uri": 7},
        {"issuer": "{}"},
    ],
)
async def test_metadata_sends_nobody_elsewhere(
    issuer: Authority, keys: SigningKeys, lie: dict[str, Any]
) -> None:
    issuer.documents[DISCOVERY] = as_json(
        {name: told.format(issuer.issuer) if isinstance(told, str) else told for name, told in lie.items()}
    )
    with pytest.raises(AuthorityUnavailableError):
        await keys.find("first", "RS256")
    assert issuer.asked["/jwks"] == 0


async def test_keys_that_are_weak_secret_or_for_something_else_are_passed_over(
    issuer: Authority, keys: SigningKeys
) -> None:
    secret = OctKey.generate_key(256, {"kid": "secret"}, auto_kid=False)
    told = [
        weak_rsa("weak").as_dict(private=False),
        {**rsa("sealing").as_dict(private=False), "use": "enc"},
        {**rsa("of another algorithm").as_dict(private=False), "alg": "RS512"},
        secret.as_dict(private=True),
        ec("curve").as_dict(private=False),
    ]
    issuer.documents["/jwks"] = as_json({"keys": told})
    for name in ("weak", "sealing", "of another algorithm", "secret", "curve"):
        assert await keys.find(name, "RS256") is None
    assert await keys.find("curve", "ES256") is not None
    assert await keys.find("curve", "ES384") is None


async def test_metadata_of_rfc_8414_will_do(issuer: Authority, keys: SigningKeys) -> None:
    issuer.documents[DISCOVERY] = Response(status_code=404)
    issuer.documents["/.well-known/oauth-authorization-server"] = as_json(
        {"issuer": issuer.issuer, "jwks_uri": f"{issuer.issuer}/jwks"}
    )
    assert await keys.find("first", "RS256") is not None
