"""What log lines do not show."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.adapters.telemetry.redaction import MASK, Redaction

TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("line", "hidden"),
    [
        (f"refused {TOKEN}", TOKEN),
        ("Authorization: Bearer s3cr3t-token", "s3cr3t-token"),
        ('{"authorization": "Basic dXNlcjpwYXNz"}', "dXNlcjpwYXNz"),
        ("{'authorization': 's3cr3t-token'}", "s3cr3t-token"),
        ("cannot reach postgresql://cwm:pa55word@db/cwm", "pa55word"),
        ("cannot reach rediss://:pa55word@cache:6379/0", "pa55word"),
        ("grant_type=x&client_secret=s3cr3t&scope=a", "s3cr3t"),
        ('{"access_token": "s3cr3t", "expires_in": 5}', "s3cr3t"),
        (json.dumps({"event": json.dumps({"password": "s3cr3t"})}), "s3cr3t"),
        ("x-api-key: s3cr3t", "s3cr3t"),
        ("upstream_api_key=s3cr3t", "s3cr3t"),
        ("Set-Cookie: sid=s3cr3t", "s3cr3t"),
        (f"eyJhbGciOiJSUzI1NiJ9 and eyJhbGciOiJSUzI1NiJ9.x and {TOKEN}", TOKEN),
        (f"{'x+' * 40}redis://u:pa55word@cache", "pa55word"),
        (f"{'x-' * 40}password=s3cr3t", "s3cr3t"),
        (f"took cwm_{'0a' * 8}_{'s3cr3t' * 7}x for a name", "s3cr3t"),
    ],
)
def test_what_looks_like_a_secret_is_masked(line: str, hidden: str) -> None:
    shown = Redaction().text(line)
    assert hidden not in shown
    assert MASK in shown


@pytest.mark.parametrize(
    "line",
    [
        '{"event":"tokens_counted","tokens":512,"token_count":7}',
        "vLLM answers at http://127.0.0.1:8000/v1 again",
        "CWM_SECRET_FILE /root/.cwm/secret is empty",
        '{"tool": "window_freeze", "error": "CWM-2001", "url": "https://docs.example/mcp?x=a@b"}',
        '{"api_key": null}',
        "a cursor eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9",
    ],
)
def test_what_is_none_stays(line: str) -> None:
    assert Redaction().text(line) == line


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=6, max_size=30), st.booleans())
def test_a_known_secret_is_masked_however_it_is_spelled(secret: str, ascii_only: bool) -> None:
    redaction = Redaction()
    redaction.hide([secret])
    inside = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
    assert redaction.text(f"before {secret} after") == f"before {MASK} after"
    line = redaction.text(json.dumps({"event": f"it was {secret}!"}, ensure_ascii=ascii_only))
    assert line == '{"event": "it was ' + MASK + '!"}', inside


def test_a_secret_that_is_replaced_stays_hidden() -> None:
    redaction = Redaction()
    redaction.hide(["first-secret"])
    redaction.hide(["second-secret"])
    assert redaction.text("first-secret second-secret") == f"{MASK} {MASK}"


def test_a_line_of_many_bytes_takes_no_time_worth_telling() -> None:
    """None of the patterns goes over the same text again and again."""
    for piece in ("a://", "bearer ", "password=", "eyJ", "x_" * 5, "'\"secret"):
        assert isinstance(Redaction().text(piece * 20_000), str)
