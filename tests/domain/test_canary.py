from __future__ import annotations

import json
from typing import Any

import pytest

from cwm.domain.canary import Canary, Origin, origin_of
from cwm.domain.look import Look

LOOK = Look((33, 65), ({7: -0.25, 9: -3.5}, {8: -0.5}))


@pytest.mark.parametrize("again", [None, LOOK.at((65,))])
@pytest.mark.parametrize("origin", list(Origin))
def test_a_canary_comes_back_from_its_record_and_its_origin(origin: Origin, again: Look | None) -> None:
    canary = Canary(LOOK, origin, again)
    assert Canary.from_dict(json.loads(json.dumps(canary.as_dict())), origin.value) == canary


def test_a_canary_without_an_origin_is_unproven() -> None:
    canary = Canary.from_dict(Canary(LOOK, Origin.COMPUTED).as_dict(), None)
    assert canary == Canary(LOOK, Origin.UNPROVEN)


@pytest.mark.parametrize("origin", [None, "computed"])
def test_the_decoded_tokens_of_an_earlier_version_are_no_canary(origin: str | None) -> None:
    assert Canary.from_dict({"token_ids": [7, 8], "top": [{"7": -0.25}, {"8": -0.5}]}, origin) is None


def test_the_version_before_reads_a_canary_as_one_without_tokens() -> None:
    """It reads these two fields, and compares as many tokens as both sides have."""
    record: dict[str, Any] = json.loads(json.dumps(Canary(LOOK, Origin.COMPUTED).as_dict()))
    top = tuple({int(token): value for token, value in likeliest.items()} for likeliest in record["top"])
    assert (tuple(record["token_ids"]), top) == ((), ())


@pytest.mark.parametrize(
    ("resting", "proven", "origin"),
    [
        (0, 0, Origin.COMPUTED),
        (0, 64, Origin.COMPUTED),
        (64, 64, Origin.INHERITED),
        (32, 64, Origin.INHERITED),
        (96, 64, Origin.UNPROVEN),
        (64, 0, Origin.UNPROVEN),
        (None, 0, Origin.UNPROVEN),
        (None, 64, Origin.UNPROVEN),
    ],
)
def test_where_a_canary_comes_from_follows_from_what_its_kv_rests_on(
    resting: int | None, proven: int, origin: Origin
) -> None:
    assert origin_of(resting, proven) is origin


def test_all_origins_prove_something_but_one() -> None:
    assert {origin for origin in Origin if not origin.is_proven} == {Origin.UNPROVEN}
