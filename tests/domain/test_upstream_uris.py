"""URIs of upstreams: reversible, the same in every field that holds one, and left alone where they are others'."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.upstream import NAME_PATTERN, OfferKind, UpstreamSpec, offers
from cwm.domain.upstream_uris import ServedUris, exposed_uri, own_uri, with_uris

UPSTREAMS = st.from_regex(re.compile(NAME_PATTERN.replace("$", r"\Z")))
URIS = st.builds(
    lambda scheme, rest: f"{scheme}{rest}",
    st.from_regex(r"([a-z][a-z0-9+.-]{0,8}:(//)?)?", fullmatch=True),
    st.text(max_size=20),
)


@given(UPSTREAMS, URIS)
def test_an_exposed_uri_gives_back_the_upstreams_own(upstream: str, uri: str) -> None:
    assert own_uri(upstream, exposed_uri(upstream, uri)) == uri


@given(UPSTREAMS, UPSTREAMS, URIS)
def test_an_exposed_uri_is_no_other_upstreams(upstream: str, other: str, uri: str) -> None:
    if other != upstream:
        assert own_uri(other, exposed_uri(upstream, uri)) is None


@pytest.mark.parametrize(
    ("uri", "exposed"),
    [
        ("file:///a", "file://up//a"),
        ("urn:isbn:1", "urn:up/isbn:1"),
        ("notes", "up/notes"),
        ("{+uri}", "up/{+uri}"),
        ("{scheme}://h/{p}", "{scheme}://up/h/{p}"),
    ],
)
def test_the_name_stands_behind_the_scheme_if_there_is_one(uri: str, exposed: str) -> None:
    assert exposed_uri("up", uri) == exposed


PAGE, EXPOSED_PAGE = "ui://map/view.html", "ui://up/map/view.html"
LINK = {"type": "resource_link", "uri": "file:///a", "name": "a"}
EXPOSED_LINK = {**LINK, "uri": "file://up//a"}


@pytest.mark.parametrize(
    ("answer", "exposed"),
    [
        ({"content": [{"type": "text", "text": "file:///a"}]}, None),
        ({"structuredContent": {"uri": "file:///a"}}, None),
        ({"content": [LINK]}, {"content": [EXPOSED_LINK]}),
        (
            {"content": [{"type": "resource", "resource": {"uri": "file:///a", "text": "x"}}]},
            {"content": [{"type": "resource", "resource": {"uri": "file://up//a", "text": "x"}}]},
        ),
        (
            {"messages": [{"role": "user", "content": LINK}]},
            {"messages": [{"role": "user", "content": EXPOSED_LINK}]},
        ),
        ({"contents": [{"uri": "file:///a"}]}, {"contents": [{"uri": "file://up//a"}]}),
        ({"_meta": {"ui": {"resourceUri": PAGE}}}, {"_meta": {"ui": {"resourceUri": EXPOSED_PAGE}}}),
        ({"_meta": {"ui/resourceUri": PAGE}}, {"_meta": {"ui/resourceUri": EXPOSED_PAGE}}),
        ({"_meta": {"openai/outputTemplate": PAGE}}, {"_meta": {"openai/outputTemplate": EXPOSED_PAGE}}),
        (
            {"inputRequests": {"ask": {"params": {"messages": [{"role": "user", "content": [LINK]}]}}}},
            {
                "inputRequests": {
                    "ask": {"params": {"messages": [{"role": "user", "content": [EXPOSED_LINK]}]}}
                }
            },
        ),
        ({"inputRequests": {"ask": {"params": {"url": "https://example.com"}}}}, None),
    ],
    ids=lambda each: None if each is None else str(each)[:40],
)
def test_a_uri_has_its_name_at_the_gateway_wherever_mcp_has_one(
    answer: dict[str, Any], exposed: dict[str, Any] | None
) -> None:
    assert with_uris(answer, ServedUris("up").exposed) == (exposed or answer)


@pytest.mark.parametrize("kind", OfferKind)
def test_a_definition_names_its_page_as_the_gateway_does(kind: OfferKind) -> None:
    definition = {
        "name": "a",
        "uri": "a:b",
        "uriTemplate": "a:{b}",
        "_meta": {"ui": {"resourceUri": PAGE, "x": 1}},
    }
    (offer,) = offers(UpstreamSpec("up"), kind, (definition,)).values()
    assert offer.definition["_meta"] == {"ui": {"resourceUri": EXPOSED_PAGE, "x": 1}}


@pytest.mark.parametrize(
    ("uri", "is_served"),
    [
        ("https://example.com/listed", True),
        ("https://example.com/other", False),
        ("HTTPS://example.com/other", False),
        ("http://wiki.example/pages/home", True),
        ("http://wiki.example/pages/home/edit", False),
        ("http://wiki.example/search?q=a&n=1", True),
        ("data:text/plain,hello", False),
        ("file:///other", True),
        ("ui://other", True),
    ],
)
def test_an_address_of_the_web_is_the_upstreams_only_if_it_lists_it(uri: str, is_served: bool) -> None:
    served = ServedUris(
        "up",
        frozenset({"https://example.com/listed"}),
        ("http://wiki.example/pages/{page}", "http://wiki.example/search{?q,n}", "{+uri}"),
    )
    assert served.exposed(uri) == (exposed_uri("up", uri) if is_served else uri)


def test_a_template_of_an_upstream_costs_no_time() -> None:
    served = ServedUris("docs", templates=("https://a.example/" + "{+a}" * 400 + "b",))
    began = time.perf_counter()
    assert served.exposed("https://a.example/" + "a" * 2_000) == "https://a.example/" + "a" * 2_000
    assert time.perf_counter() - began < 5


def test_what_is_nested_without_an_end_stays_as_it_is_inside() -> None:
    nested: dict[str, Any] = {"uri": "docs://a"}
    for _ in range(900):
        nested = {"resource": nested}
    assert with_uris(nested, str.upper) == nested
