"""What ``allow`` and ``deny`` say of a resource holds however its URI is spelled."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.resource_uris import plain
from cwm.domain.upstream import OfferKind, Selection, UpstreamSpec, offers

PUBLIC = Selection(allow=("file:///srv/public/*",))
NOT_PRIVATE = Selection(deny=("file:///srv/private/*",))
SEGMENTS = st.text(st.characters(codec="utf-8", exclude_characters="/\\"), min_size=1, max_size=8).filter(
    lambda segment: segment not in {".", ".."}
)


@pytest.mark.parametrize(
    "uri",
    [
        "file:///srv/public/../private/k",
        "file:///srv/public/%2e%2e/private/k",
        "file:///srv/public/.%2E/private/k",
        "file:///srv/public/%252e%252e/private/k",
        "file:///srv/public/..%2Fprivate/k",
        "file:///srv/public/%" + "25" * 1_000_000 + "2e",
        "file:///srv/public/..\\private\\k",
        "file:///srv/public/x?/../../private/k",
        "file:///srv/public/..",
        "file:///srv/./public/k",
        "notes:..",
        "notes/../private/k",
        "notes/%2e%2e/private:k",
        "..",
    ],
    ids=lambda uri: uri[:40],
)
def test_a_path_that_climbs_is_no_resource_whatever_is_allowed(uri: str) -> None:
    assert not PUBLIC.admits_uri(uri)
    assert not NOT_PRIVATE.admits_uri(uri)
    assert not Selection().admits_uri(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "file:///srv/private/k",
        "file:///srv/%70rivate/k",
        "FILE:///srv/private/k",
        "file://localhost/srv/private/k",
        "file://LocalHost/srv/private/k",
        "file://%6cocalhost/srv/private/k",
        "file:/srv/private/k",
        "file:///srv//private/k",
        "file:////srv/private/k",
        "file:///srv%2Fprivate/k",
    ],
)
def test_what_is_denied_is_denied_in_every_spelling(uri: str) -> None:
    assert not NOT_PRIVATE.admits_uri(uri)
    assert not Selection(deny=("*/private/*",)).admits_uri(uri)


@pytest.mark.parametrize(
    ("pattern", "uri"),
    [
        ("file:///srv/public/*", "file:///srv/public/a%20b.txt"),
        ("file:///srv/my%20docs/*", "file:///srv/my%20docs/a"),
        ("file:///srv/%5Bold%5D/*", "file:///srv/%5Bold%5D/a"),
        ("file://localhost/srv/*", "file://localhost/srv/a"),
        ("https://Example.com/*", "https://Example.com/a?b=c#d"),
        ("Notes://Today", "Notes://Today"),
        ("*://today", "notes://today"),
        ("*.txt", "file:///a/b...c/.hidden.txt"),
        ("mail:[a-c]*", "mail:b@example.com"),
        ("proxy://h/*", "proxy://h/https://x/y"),
    ],
)
def test_what_is_allowed_as_it_is_spelled_is_allowed(pattern: str, uri: str) -> None:
    assert Selection(allow=(pattern,)).admits_uri(uri)


def test_another_spelling_of_what_is_allowed_is_not_allowed_where_the_pattern_does_not_say_so() -> None:
    assert not PUBLIC.admits_uri("FILE:///srv/public/a")
    # An escaped wildcard is a character.
    assert not Selection(allow=("file:///srv/%2A",)).admits_uri("file:///srv/a")


@given(st.lists(SEGMENTS, min_size=1, max_size=4), st.data())
def test_no_escaping_of_a_denied_path_is_admitted(segments: list[str], data: st.DataObject) -> None:
    path = "/srv/private/" + "/".join(quote(segment) for segment in segments)
    assert not NOT_PRIVATE.admits_uri(f"file://{path}")
    escaped = "".join(
        f"%{ord(each):02x}" if each.isalpha() and data.draw(st.booleans()) else each
        for each in "/srv/private/"
    )
    scheme = data.draw(st.sampled_from(["file:", "File:", "FILE:"]))
    host = data.draw(st.sampled_from(["", "//", "//localhost", "//LOCALHOST"]))
    assert not NOT_PRIVATE.admits_uri(scheme + host + path.replace("/srv/private/", escaped, 1))


@given(st.lists(SEGMENTS, min_size=1, max_size=4))
def test_whatever_is_below_what_is_allowed_is_admitted(segments: list[str]) -> None:
    assert PUBLIC.admits_uri("file:///srv/public/" + "/".join(quote(segment) for segment in segments))


@given(st.text(max_size=30))
def test_a_plain_uri_without_escapes_is_its_own_plain_spelling(rest: str) -> None:
    once = plain("file:///" + quote(rest))
    if "%" not in once:
        assert plain(once) == once


def test_what_is_denied_in_another_spelling_is_not_listed() -> None:
    listed = ({"uri": "file:///srv/%70rivate/k", "name": "k"}, {"uri": "file:///srv/k", "name": "l"})
    shown = offers(UpstreamSpec("up", resources=NOT_PRIVATE), OfferKind.RESOURCES, listed)
    assert [offer.own_name for offer in shown.values()] == ["file:///srv/k"]
