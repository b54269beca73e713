"""Which signed access tokens are taken, and that all others are refused without a crash."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import RedirectResponse

from cwm.adapters.oauth.claims import Expected
from cwm.adapters.oauth.fetch import Fetch
from cwm.adapters.oauth.signed_tokens import SignedTokens, header_of
from cwm.adapters.oauth.signing_keys import SigningKeys
from cwm.adapters.oauth.tokens import OAuthTokens
from cwm.domain.errors import UnauthenticatedError
from cwm.settings.auth import Auth
from tests.adapters.oauth.authority import AUDIENCE, Authority, authority, ec, rsa

pytestmark = pytest.mark.slow

LEEWAY = 30


@asynccontextmanager
async def checking(asked: Authority) -> AsyncIterator[OAuthTokens]:
    fetch = Fetch()
    keys = SigningKeys(asked.issuer, None, fetch, asked.clock, 3600)
    expected = Expected(asked.issuer, (AUDIENCE,), LEEWAY)
    signed = SignedTokens(keys, expected, Auth().algorithms(), asked.clock)
    tokens = OAuthTokens(signed, None, keys, fetch)
    try:
        yield tokens
    finally:
        await tokens.aclose()


@pytest.fixture
async def issuer() -> AsyncIterator[Authority]:
    async with authority() as asked:
        yield asked


@pytest.fixture
async def tokens(issuer: Authority) -> AsyncIterator[OAuthTokens]:
    async with checking(issuer) as made:
        yield made


async def why(tokens: OAuthTokens, token: str) -> str:
    with pytest.raises(UnauthenticatedError) as refused:
        await tokens.checked(token)
    return refused.value.why


async def test_a_good_token_says_who_came_with_what(issuer: Authority, tokens: OAuthTokens) -> None:
    token = await tokens.checked(issuer.token(tenant="acme"))
    assert (token.issuer, token.subject, token.client) == (issuer.issuer, "alice", "desktop")
    assert token.scopes == {"windows:read", "openid"}
    assert token.claims["tenant"] == "acme"


async def test_elliptic_signatures_audience_lists_and_scp_are_taken(
    issuer: Authority, tokens: OAuthTokens
) -> None:
    issuer.keys.append(ec("curve"))
    made = issuer.token(issuer.keys[1], scope=None, scp=["admin"], aud=["https://other.test", AUDIENCE])
    assert (await tokens.checked(made)).scopes == {"admin"}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"aud": "https://other.test"}, "wrong_audience"),
        ({"aud": ["https://other.test"]}, "wrong_audience"),
        ({"aud": None}, "wrong_audience"),
        ({"aud": {"any": AUDIENCE}}, "wrong_audience"),
        ({"iss": "https://other.test"}, "wrong_issuer"),
        ({"iss": None}, "wrong_issuer"),
        ({"exp": None}, "no_expiry"),
        ({"exp": "tomorrow"}, "no_expiry"),
        ({"exp": float("nan")}, "no_expiry"),
        ({"exp": float("inf")}, "no_expiry"),
        ({"sub": 7}, "malformed"),
        ({"cnf": {"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"}}, "bound_to_a_key"),
        ({"cnf": {"x5t#S256": "bwcK0esc3ACC3DB2Y5_lESsXE8o9ltc05O89jdN-dg2"}}, "bound_to_a_key"),
        ({"cnf": {}}, "bound_to_a_key"),
    ],
)
async def test_claims_that_are_not_for_us_are_refused(
    issuer: Authority, tokens: OAuthTokens, changed: dict[str, Any], reason: str
) -> None:
    assert await why(tokens, issuer.token(**changed)) == reason


async def test_times_hold_within_the_leeway_and_no_further(issuer: Authority, tokens: OAuthTokens) -> None:
    now = int(issuer.clock.now().timestamp())
    await tokens.checked(issuer.token(exp=now - LEEWAY + 1))
    await tokens.checked(issuer.token(nbf=now + LEEWAY, iat=now + LEEWAY))
    assert await why(tokens, issuer.token(exp=now - LEEWAY)) == "expired"
    assert await why(tokens, issuer.token(nbf=now + LEEWAY + 1)) == "not_yet_valid"
    assert await why(tokens, issuer.token(iat=now + LEEWAY + 1)) == "not_yet_valid"


async def test_a_token_of_another_key_under_a_known_name_is_forged(
    issuer: Authority, tokens: OAuthTokens
) -> None:
    assert await why(tokens, issuer.token(rsa("stranger"), {"kid": "first"})) == "forged"
    head, _, signature = issuer.token().split(".")
    claims = _part(issuer.claims(sub="mallory"))
    assert await why(tokens, f"{head}.{claims}.{signature}") == "forged"
    assert await why(tokens, f"{head}.{claims}.") == "forged"


async def test_a_token_without_a_signature_is_refused(issuer: Authority, tokens: OAuthTokens) -> None:
    for spelled in ("none", "None", "NONE", ""):
        header = _part({"alg": spelled, "typ": "at+jwt", "kid": "first"})
        assert await why(tokens, f"{header}.{_part(issuer.claims())}.") == "algorithm"


async def test_the_public_key_is_no_shared_secret(issuer: Authority, tokens: OAuthTokens) -> None:
    public = issuer.keys[0]
    for secret in (public.as_pem(private=False), json.dumps(public.as_dict(private=False)).encode()):
        signed = f"{_part({'alg': 'HS256', 'kid': 'first', 'typ': 'at+jwt'})}.{_part(issuer.claims())}"
        signature = _encoded(hmac.digest(secret, signed.encode(), "sha256"))
        assert await why(tokens, f"{signed}.{signature}") == "algorithm"


async def test_a_token_has_no_say_in_whose_key_it_is_checked_with(
    issuer: Authority, tokens: OAuthTokens
) -> None:
    mine = rsa("mine")
    offered = {
        "jku": f"{issuer.issuer}/mine",
        "x5u": f"{issuer.issuer}/mine",
        "jwk": mine.as_dict(private=False),
    }
    assert await why(tokens, issuer.token(mine, offered)) == "unknown_signer"
    assert await why(tokens, issuer.token(mine, {**offered, "kid": "first"})) == "forged"
    assert issuer.asked["/mine"] == 0


async def test_a_token_of_another_kind_is_no_access_token(issuer: Authority, tokens: OAuthTokens) -> None:
    assert await why(tokens, issuer.token(header={"typ": "logout+jwt"})) == "not_an_access_token"
    assert (
        await why(tokens, _part({"alg": "RS256", "kid": "first", "crit": ["exp"]}) + ".e30.x")
        == "not_an_access_token"
    )
    assert (
        await why(tokens, _part({"alg": "RS256", "kid": ["first"], "typ": "at+jwt"}) + ".e30.x")
        == "malformed"
    )


async def test_a_token_without_a_key_id_is_taken_while_only_one_key_fits(
    issuer: Authority, tokens: OAuthTokens
) -> None:
    await tokens.checked(issuer.token(header={"kid": None}))
    issuer.keys.append(rsa("second"))
    issuer.clock.passed += 301
    assert await why(tokens, issuer.token(header={"kid": None})) == "unknown_signer"


async def test_json_that_is_nested_too_deep_is_refused(tokens: OAuthTokens) -> None:
    deep = base64.urlsafe_b64encode(b'{"alg":' + b"[" * 4000 + b"]" * 4000 + b"}").decode().rstrip("=")
    assert header_of(f"{deep}.e30.x") is None
    assert await why(tokens, f"{deep}.e30.x") == "malformed"


@given(
    st.one_of(
        st.text(max_size=80),
        st.from_regex(r"[A-Za-z0-9_-]{0,40}(\.[A-Za-z0-9_-]{0,40}){0,4}", fullmatch=True),
    )
)
def test_any_text_has_a_header_or_none(text: str) -> None:
    header = header_of(text)
    assert header is None or "alg" in header


async def test_redirects_are_not_followed(issuer: Authority, tokens: OAuthTokens) -> None:
    issuer.documents["/.well-known/openid-configuration"] = RedirectResponse("/elsewhere")
    with pytest.raises(Exception, match="cannot be read"):
        await tokens.checked(issuer.token())
    assert issuer.asked["/elsewhere"] == 0


def _part(told: Any) -> str:
    return _encoded(json.dumps(told).encode())


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
