"""Forms are of this gateway's pages, of one sign-in, and young."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from starlette.requests import Request

from cwm.domain.access import EVERY
from cwm.domain.errors import CwmError, InvalidParameterError, SecurityError
from cwm.domain.principal import Principal
from cwm.transport.console.access import form
from cwm.transport.console.access.form import FIELD, Form, FormTokens
from cwm.transport.http.request_keys import FORMS, PRINCIPAL, SIGN_IN
from tests.adapters.oauth.authority import MovableClock

SECRET = b"a secret of a test"
OWN = {"origin": "https://cwm.test", "sec-fetch-site": "same-origin"}


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock(3599.0)


def a_request(
    clock: MovableClock,
    headers: dict[str, str],
    *,
    sign_in: str | None = None,
    subject: str = "local",
    secrets: Sequence[bytes] = (SECRET,),
    body: bytes = b"",
) -> Request:
    sent = {"host": "cwm.test", "content-type": "application/x-www-form-urlencoded", **headers}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/console/tenant",
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
        FORMS: FormTokens(secrets, clock),
        PRINCIPAL: Principal("default", subject, EVERY),
    }
    if sign_in is not None:
        scope[SIGN_IN] = sign_in
    parts = [
        {"type": "http.request", "body": body[at : at + 1000], "more_body": True}
        for at in range(0, len(body), 1000)
    ]

    async def receive() -> dict[str, object]:
        return parts.pop(0) if parts else {"type": "http.request", "body": b"", "more_body": False}

    return Request(scope, receive)


def carrying(token: str) -> Form:
    return Form({FIELD: [token]})


@pytest.mark.parametrize("sign_in", [None, "4711"])
def test_a_form_of_ones_own_page_is_taken(clock: MovableClock, sign_in: str | None) -> None:
    token = form.token(a_request(clock, {}, sign_in=sign_in))
    for headers in (OWN, {"origin": "https://cwm.test"}, {"sec-fetch-site": "same-origin"}):
        form.check(a_request(clock, headers, sign_in=sign_in), carrying(token))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "https://evil.test"},
        {"origin": "null"},
        {"origin": "https://cwm.test:8443"},
        {"origin": "https://cwm.test", "sec-fetch-site": "same-site"},
        {"origin": "https://cwm.test", "sec-fetch-site": "none"},
        {"sec-fetch-site": "cross-site"},
        {"origin": "https://evil.test", "sec-fetch-site": "same-origin"},
    ],
)
def test_a_form_of_another_page_is_refused_even_with_the_token(
    clock: MovableClock, headers: dict[str, str]
) -> None:
    token = form.token(a_request(clock, {}))
    with pytest.raises(SecurityError, match="elsewhere"):
        form.check(a_request(clock, headers), carrying(token))


def test_a_token_is_of_one_sign_in(clock: MovableClock) -> None:
    token = form.token(a_request(clock, {}, sign_in="one"))
    for other in (
        a_request(clock, OWN, sign_in="other"),
        a_request(clock, OWN),
        a_request(clock, OWN, sign_in="one", secrets=[b"another gateway's"]),
    ):
        with pytest.raises(SecurityError, match="too old, or was made for another sign-in"):
            form.check(other, carrying(token))
    for wrong in ("", "é" * 64, token[:-1], token.upper()):
        with pytest.raises(SecurityError):
            form.check(a_request(clock, OWN, sign_in="one"), carrying(wrong))
    mine = form.token(a_request(clock, {}, subject="a"))
    with pytest.raises(SecurityError):
        form.check(a_request(clock, OWN, subject="b"), carrying(mine))


def test_a_token_is_good_in_its_hour_and_the_next(clock: MovableClock) -> None:
    token = form.token(a_request(clock, {}))
    for seconds in (2, 3540):
        clock.passed += seconds
        form.check(a_request(clock, OWN), carrying(token))
    clock.passed += 60
    with pytest.raises(SecurityError):
        form.check(a_request(clock, OWN), carrying(token))


def test_a_token_outlives_a_change_of_the_secret(clock: MovableClock) -> None:
    token = form.token(a_request(clock, {}))
    form.check(a_request(clock, OWN, secrets=[b"new", SECRET]), carrying(token))


async def test_fields_are_read_as_a_browser_sends_them(clock: MovableClock) -> None:
    body = b"name=+%C3%BCber+uns%21+&scope=a&scope=b&empty="
    read = await form.read(a_request(clock, {}, body=body))
    assert read.text("name") == "über uns!"
    assert read.texts("scope") == ["a", "b"]
    assert (read.text("empty"), read.text("nothing"), read.texts("nothing")) == ("", "", [])


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"a=" + b"b" * 65_536, "application/x-www-form-urlencoded"),
        (b"&".join(b"a=1" for _ in range(201)), "application/x-www-form-urlencoded"),
        (b"a=\xff", "application/x-www-form-urlencoded"),
        (b"a=%FF", "application/x-www-form-urlencoded"),
        (b"a=1", "text/plain"),
        (b"a=1", "multipart/form-data; boundary=x"),
    ],
)
async def test_what_is_no_form_or_too_large_is_refused(clock: MovableClock, body: bytes, kind: str) -> None:
    with pytest.raises(InvalidParameterError) as refused:
        await form.read(a_request(clock, {"content-type": kind}, body=body))
    assert isinstance(refused.value, CwmError)
