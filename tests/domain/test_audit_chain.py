"""Whatever is done to a chain by one who lacks the secret shows, and says where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.audit import AuditEvent, Severity
from cwm.domain.audit_chain import (
    Anchor,
    AuditRecord,
    ChainKeys,
    Checkpoint,
    Place,
    carried,
)
from cwm.domain.audit_check import ChainCheck, Damage, Verdict
from cwm.domain.origin import Face, Origin

NOW: Final = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)
KEYS: Final = ChainKeys([b"the gateway's secret"])
STRANGERS_KEYS: Final = ChainKeys([b"another secret"])
ORIGIN: Final = Origin(Face.MCP, "192.0.2.1", "agent/1")

Records: TypeAlias = list[AuditRecord]


def an_event(number: int, **given: Any) -> AuditEvent:
    event = AuditEvent(
        NOW + timedelta(seconds=number),
        "acme",
        "ann",
        "window_freeze",
        "success",
        session_id=f"s{number}",
        window_name=f"w{number}",
        details={"blocks": number},
        origin=ORIGIN,
    )
    return replace(event, **given)


def chained(events: Sequence[AuditEvent], after: Place = Place(), keys: ChainKeys = KEYS) -> Records:  # noqa: B008
    records: Records = []
    for event in events:
        records.append(keys.link(event, records[-1].place if records else after))
    return records


CHAIN: Final = chained([an_event(number) for number in range(12)])
CHECKPOINT: Final = Checkpoint("acme", CHAIN[-1].place, NOW)


def looked_at(
    records: Sequence[AuditRecord],
    checkpoints: Sequence[Checkpoint] = (CHECKPOINT,),
    anchor: Anchor | None = None,
    keys: ChainKeys = KEYS,
) -> Verdict:
    """As a database gives them: by their numbers."""
    check = ChainCheck(keys, anchor or Anchor("acme"), checkpoints)
    for record in sorted(records, key=lambda record: record.seq):
        check.take(record)
    return check.verdict()


def damages(verdict: Verdict) -> list[tuple[Damage, int, int]]:
    return [(found.damage, found.first, found.last) for found in verdict.findings]


_OTHER: Final[dict[str, Any]] = {
    "tenant": "bolt",
    "subject": "bob",
    "event": "window_thaw",
    "outcome": "CWM-2002",
    "session_id": None,
    "window_name": "another",
    "severity": Severity.ERROR,
    "details": {"blocks": 3.5},
    "timestamp": NOW - timedelta(microseconds=1),
    "origin": replace(ORIGIN, address="192.0.2.2"),
}
indexes = st.integers(0, len(CHAIN) - 1)


def test_a_chain_as_it_was_written_is_whole() -> None:
    verdict = looked_at(CHAIN)
    assert verdict.whole
    assert (verdict.records, verdict.end) == (12, CHAIN[-1].place)


def test_nothing_recorded_yet_is_whole() -> None:
    assert looked_at([], checkpoints=()).whole


@given(indexes, st.sampled_from(sorted(_OTHER)))
def test_a_change_of_any_field_of_an_event_shows(at: int, field: str) -> None:
    records = list(CHAIN)
    records[at] = replace(records[at], event=replace(records[at].event, **{field: _OTHER[field]}))
    assert damages(looked_at(records)) == [(Damage.CHANGED, at + 1, at + 1)]


@given(indexes, st.sampled_from(["face", "address", "user_agent"]))
def test_a_change_of_where_an_event_came_from_shows(at: int, field: str) -> None:
    records = list(CHAIN)
    event = records[at].event
    other: dict[str, Any] = {field: Face.STDIO if field == "face" else None}
    moved = replace(event, origin=replace(event.origin, **other))
    records[at] = replace(records[at], event=moved)
    assert damages(looked_at(records)) == [(Damage.CHANGED, at + 1, at + 1)]


@given(indexes, st.sampled_from(["previous", "digest", "key_id"]))
def test_a_change_of_what_links_a_record_shows(at: int, field: str) -> None:
    records, other = list(CHAIN), dict[str, Any]({field: "0" * 64})
    records[at] = replace(records[at], **other)
    assert not looked_at(records).whole


@given(indexes, st.data())
def test_removing_any_records_shows(first: int, data: st.DataObject) -> None:
    last = data.draw(st.integers(first, len(CHAIN) - 1))
    left = CHAIN[:first] + CHAIN[last + 1 :]
    damage = Damage.CUT_OFF if last == len(CHAIN) - 1 else Damage.REMOVED
    assert damages(looked_at(left)) == [(damage, first + 1, last + 1)]


@given(indexes, indexes)
def test_giving_two_records_each_others_numbers_shows(one: int, other: int) -> None:
    records = list(CHAIN)
    records[one] = replace(CHAIN[one], seq=CHAIN[other].seq)
    records[other] = replace(CHAIN[other], seq=CHAIN[one].seq)
    assert looked_at(records).whole == (one == other)


@given(indexes, indexes)
def test_giving_two_records_each_others_events_shows(one: int, other: int) -> None:
    records = list(CHAIN)
    records[one] = replace(CHAIN[one], event=CHAIN[other].event)
    records[other] = replace(CHAIN[other], event=CHAIN[one].event)
    assert looked_at(records).whole == (one == other)


@given(st.integers(-1, 13))
def test_a_record_that_was_put_in_shows(number: int) -> None:
    before = CHAIN[number - 2].place if 2 <= number <= 13 else Place(number - 1, "")
    forged = replace(STRANGERS_KEYS.link(an_event(99), before), key_id=CHAIN[0].key_id)
    assert not looked_at([*CHAIN, forged]).whole


@given(indexes)
def test_a_record_that_is_there_twice_shows(at: int) -> None:
    verdict = looked_at([*CHAIN, CHAIN[at]])
    assert (Damage.REPEATED, at + 1, at + 1) in damages(verdict)


@given(indexes)
def test_closing_the_gap_after_a_removal_shows(at: int) -> None:
    moved = [replace(record, seq=record.seq - 1) for record in CHAIN[at + 1 :]]
    assert not looked_at(CHAIN[:at] + moved).whole


@given(st.integers(1, len(CHAIN)))
def test_a_chain_that_was_cut_off_and_carried_on_shows_against_a_checkpoint(kept: int) -> None:
    left = CHAIN[:kept]
    more = chained([an_event(100 + number) for number in range(20)], left[-1].place)
    assert looked_at(left + more, checkpoints=()).whole
    assert looked_at(left + more).whole == (kept == len(CHAIN))


def test_a_chain_of_a_gateway_with_another_secret_is_told_from_a_changed_one() -> None:
    strangers = chained([an_event(5)], CHAIN[-1].place, STRANGERS_KEYS)
    assert damages(looked_at(CHAIN + strangers)) == [(Damage.UNKNOWN_KEY, 13, 13)]


def test_records_under_the_secret_before_the_present_one_are_whole() -> None:
    both = ChainKeys([b"a new secret", b"the gateway's secret"])
    longer = CHAIN + chained([an_event(50)], CHAIN[-1].place, both)
    assert looked_at(longer, keys=both).whole


@given(st.integers(1, len(CHAIN) - 1))
def test_what_had_its_time_is_not_missing(pruned: int) -> None:
    anchor = KEYS.sign(Anchor("acme", CHAIN[pruned - 1].place))
    verdict = looked_at(CHAIN[pruned:], anchor=anchor)
    assert verdict.whole
    assert verdict.pruned == pruned


_ANCHOR: Final = KEYS.sign(Anchor("acme", CHAIN[4].place))


@pytest.mark.parametrize(
    "forge",
    [
        lambda: replace(_ANCHOR, pruned=CHAIN[6].place),
        lambda: replace(_ANCHOR, signature="0" * 64),
        lambda: replace(_ANCHOR, tenant="bolt"),
        lambda: STRANGERS_KEYS.sign(Anchor("acme", CHAIN[6].place)),
        lambda: Anchor("acme"),
    ],
)
def test_an_anchor_that_no_gateway_made_shows(forge: Callable[[], Anchor]) -> None:
    assert not looked_at(CHAIN[7:], anchor=forge()).whole


def test_a_record_that_comes_back_after_it_was_pruned_shows() -> None:
    assert damages(looked_at(CHAIN[4:], anchor=_ANCHOR)) == [(Damage.REPEATED, 5, 5)]


def test_a_chain_of_which_nothing_is_left_behind_its_anchor_shows() -> None:
    assert damages(looked_at([], checkpoints=(), anchor=_ANCHOR)) == [(Damage.CUT_OFF, 6, 6)]


def _carried_chain() -> Records:
    old: Records = []
    for number in range(3):
        old.append(carried(an_event(number), old[-1].place if old else Place()))
    return old


def _signed(old: Records, pruned: Place = Place()) -> Anchor:  # noqa: B008
    last = old[-1].place
    return KEYS.sign(Anchor("acme", pruned, carried_through=last.seq, carried_digest=last.digest))


def _rewritten(old: Records) -> Records:
    rewritten: Records = []
    for record in old:
        event = replace(record.event, subject="bob")
        rewritten.append(carried(event, rewritten[-1].place if rewritten else Place()))
    return rewritten


def test_records_from_before_the_chain_are_vouched_for_by_an_anchor_that_is_signed_with_the_last_of_them() -> (
    None
):
    old = _carried_chain()
    through = _signed(old)
    assert looked_at(old, (), through).whole
    new = chained([an_event(7)], old[-1].place)
    assert looked_at(old + new, (), through).whole
    assert looked_at(old + new, (), through).carried == 3

    # The trail reads the digest from the chain that it finds.
    found = replace(through, carried_digest=_rewritten(old)[-1].digest)
    assert damages(looked_at(_rewritten(old) + new, (), found)) == [
        (Damage.UNSIGNED, 1, 3),
        (Damage.UNLINKED, 4, 4),
    ]


@pytest.mark.parametrize("signature", ["none", "older", "strangers", "carried"])
def test_records_that_nobody_signed_are_not_vouched_for_by_the_record_that_a_gateway_linked_to_them(
    signature: str,
) -> None:
    """With the database alone a whole chain is replaced by records under the key that is no secret."""
    forged = _rewritten(_carried_chain())
    anchor = Anchor("acme", carried_through=3, carried_digest=forged[-1].digest)
    if signature == "older":
        anchor = replace(anchor, key_id=_OLDER_ANCHOR.key_id, signature=_OLDER_ANCHOR.signature)
    elif signature == "strangers":
        anchor = STRANGERS_KEYS.sign(anchor)
    elif signature == "carried":
        anchor = replace(_signed(_carried_chain()), key_id="carried", carried_digest=forged[-1].digest)
    assert damages(looked_at(forged, (), anchor)) == [(Damage.UNSIGNED, 1, 3)]
    linked = chained([an_event(7)], forged[-1].place)
    assert damages(looked_at(forged + linked, (), anchor)) == [(Damage.UNSIGNED, 1, 3)]


def test_the_key_that_is_no_secret_is_good_for_nothing_newer() -> None:
    forged = carried(an_event(7), CHAIN[-1].place)
    assert damages(looked_at([*CHAIN, forged])) == [(Damage.CHANGED, 13, 13)]


# As gateways signed it that left out how far the older records reach.
_OLDER_ANCHOR: Final = Anchor(
    "acme",
    carried_through=3,
    key_id="7a9717f9651a",
    signature="5ca194569aacf874676ac8c849ee20d833a912809924222a731da84713f5d450",
)


def test_how_far_the_older_records_reach_is_signed_with_where_the_chain_begins() -> None:
    old = _carried_chain()
    anchor = _signed(old, old[0].place)
    chain = old[1:] + chained([an_event(7)], old[-1].place)
    assert looked_at(chain, (), anchor).whole
    moved = looked_at(chain, (), replace(anchor, carried_through=4))
    assert damages(moved) == [(Damage.UNSIGNED, 1, 1)]


def test_an_anchor_from_before_that_was_signed_holds_for_what_was_pruned() -> None:
    old = _carried_chain()
    chain = old[1:] + chained([an_event(7)], old[-1].place)
    anchor = replace(_OLDER_ANCHOR, pruned=old[0].place)
    assert damages(looked_at(chain, (), anchor)) == [(Damage.UNSIGNED, 2, 3)]
    assert looked_at(chain, (), _signed(old, old[0].place)).whole
    assert not looked_at(chain, (), replace(_OLDER_ANCHOR, pruned=Place(1, "0" * 64))).whole


@pytest.mark.parametrize("anchor", [Anchor("acme", carried_through=99), None])
def test_an_unsigned_anchor_makes_no_room_for_the_key_that_is_no_secret_after_the_chain_began(
    anchor: Anchor | None,
) -> None:
    old = _carried_chain()
    anchor = anchor or replace(_OLDER_ANCHOR, pruned=old[0].place, carried_through=99)
    chain = old[anchor.pruned.seq :] + chained([an_event(7)], old[-1].place)
    forged = carried(an_event(8), chain[-1].place)
    assert damages(looked_at([*chain, forged], (), anchor)) == [
        (Damage.UNSIGNED, anchor.pruned.seq + 1, 3),
        (Damage.CHANGED, 5, 5),
    ]


def test_a_checkpoint_and_an_anchor_hold_only_as_they_were_signed() -> None:
    made = KEYS.sign(CHECKPOINT)
    assert KEYS.signed(made)
    assert not KEYS.signed(replace(made, place=CHAIN[3].place))
    assert not KEYS.signed(replace(made, at=NOW + timedelta(days=1)))
    assert not STRANGERS_KEYS.signed(made)
    assert not KEYS.signed(replace(made, key_id="carried"))


def test_what_no_database_can_hold_is_written_as_it_can() -> None:
    odd = an_event(
        0, subject="a\x00b\ud800", details={"n": float("nan"), "at": NOW, "t": (1, 2), "s": "\ud800"}
    )
    record = KEYS.link(odd, Place())
    assert record.event.subject == "a\N{REPLACEMENT CHARACTER}b?"
    assert record.event.details == {"n": "NaN", "at": str(NOW), "t": [1, 2], "s": "?"}
    assert KEYS.holds(record)
