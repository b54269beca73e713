"""Names and URIs of upstream things: reversible, unambiguous, and only what is admitted."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.upstream import (
    NAME_PATTERN,
    OfferKind,
    Override,
    Selection,
    UpstreamSpec,
    exposed_name,
    may_repeat,
    offers,
)

UPSTREAMS = st.from_regex(re.compile(NAME_PATTERN.replace("$", r"\Z")))
TEXT = st.text(min_size=1, max_size=20)


@given(UPSTREAMS, TEXT)
def test_an_exposed_name_begins_with_its_upstreams_up_to_the_first_underscore(
    upstream: str, own: str
) -> None:
    assert exposed_name(upstream, own).partition("_")[::2] == (upstream, own)


@given(UPSTREAMS, UPSTREAMS, st.lists(TEXT, unique=True), st.lists(TEXT, unique=True))
def test_two_upstreams_never_expose_one_name(
    one: str, other: str, of_one: list[str], of_other: list[str]
) -> None:
    if one == other:
        return
    exposed = {exposed_name(one, own) for own in of_one}
    assert not exposed & {exposed_name(other, own) for own in of_other}


@given(st.lists(TEXT, unique=True), st.lists(TEXT), st.lists(TEXT))
def test_only_what_is_allowed_and_not_denied_is_offered(
    own_names: list[str], allow: list[str], deny: list[str]
) -> None:
    spec = UpstreamSpec("up", tools=Selection(tuple(allow), tuple(deny)))
    offered = offers(spec, OfferKind.TOOLS, tuple({"name": own} for own in own_names))
    assert {offer.own_name for offer in offered.values()} == {
        own for own in own_names if spec.tools.admits(own)
    }
    assert all(offer.definition["name"] == exposed for exposed, offer in offered.items())


def test_patterns_are_those_of_the_shell_and_denial_wins() -> None:
    selection = Selection(allow=("read_*", "list"), deny=("read_secret*",))
    admitted = [n for n in ("read_file", "list", "read_secrets", "Read_file", "write") if selection.admits(n)]
    assert admitted == ["read_file", "list"]


def test_an_override_gives_another_name_and_description_and_keeps_the_rest() -> None:
    spec = UpstreamSpec("up", tools=Selection(override={"echo": Override("say", "Speak.")}))
    schema = {"type": "object"}
    offered = offers(spec, OfferKind.TOOLS, ({"name": "echo", "description": "x", "inputSchema": schema},))
    assert offered["up_say"].definition == {
        "name": "up_say",
        "description": "Speak.",
        "inputSchema": schema,
    }
    assert offered["up_say"].own_name == "echo"


def test_of_two_things_with_one_name_the_first_is_offered() -> None:
    spec = UpstreamSpec("up", tools=Selection(override={"b": Override("a")}))
    offered = offers(spec, OfferKind.TOOLS, ({"name": "a"}, {"name": "b"}))
    assert [offer.own_name for offer in offered.values()] == ["a"]


def test_resources_keep_a_name_and_get_a_uri_of_the_gateway() -> None:
    offered = offers(UpstreamSpec("up"), OfferKind.RESOURCES, ({"uri": "file:///a", "name": "a"},))
    assert offered["file://up//a"].definition == {"uri": "file://up//a", "name": "up_a"}
    templates = offers(UpstreamSpec("up"), OfferKind.TEMPLATES, ({"uriTemplate": "n://{x}", "name": "n"},))
    assert templates["n://up/{x}"].definition["uriTemplate"] == "n://up/{x}"


def test_only_a_tool_that_says_so_may_be_repeated() -> None:
    assert may_repeat({"annotations": {"readOnlyHint": True}})
    assert may_repeat({"annotations": {"idempotentHint": True}})
    assert not may_repeat({"annotations": {"destructiveHint": False}})
    assert not may_repeat({"annotations": {"readOnlyHint": "true"}})
    assert not may_repeat({})


def test_a_tool_that_says_that_it_is_not_idempotent_is_not_repeated_though_it_only_reads() -> None:
    assert not may_repeat({"annotations": {"readOnlyHint": True, "idempotentHint": False}})
    assert may_repeat({"annotations": {"readOnlyHint": False, "idempotentHint": True}})


def test_what_is_secret_in_a_spec_is_not_in_its_repr() -> None:
    spec = UpstreamSpec("up", url="http://x", headers={"X-Key": "hunter2"}, env={"KEY": "hunter2"})
    assert "hunter2" not in repr(spec)
