"""What a summary leaves out of a conversation."""

from __future__ import annotations

from random import Random
from typing import Any, Final

import pytest

from cwm.domain.facts import FactKind, facts_in, left_out

PLANTED: Final = {
    "4711": "The lucky number is 4711.",
    "12,500 EUR": "We have a budget of 12,500 EUR for it.",
    "2027-03-14": "Everything is due on 2027-03-14.",
    "45 s": "The timeout is 45 s at most.",
    "v2.3.1": "The last release that works is v2.3.1 there.",
    "87.5 %": "Coverage was 87.5 % before.",
    "10.0.42.7": "The staging host is 10.0.42.7 today.",
    "src/auth/session.py": "The bug is in src/auth/session.py somewhere.",
    "/etc/heron/limits.d": "Limits are read from /etc/heron/limits.d at start.",
    "~/notes/plan.md": "I wrote it down in ~/notes/plan.md for you.",
    "schema.sql": "Have a look at schema.sql as well.",
    "https://example.org/spec?rev=9": "The specification is at https://example.org/spec?rev=9 for now.",
    "refresh_token()": "It calls refresh_token() twice.",
    "parseHeader": "I renamed it to parseHeader yesterday.",
    "MAX_RETRIES": "Somebody changed MAX_RETRIES there.",
    "--no-cache": "It was run with --no-cache on that machine.",
    "a1b2c3d4e5f6": "The commit is a1b2c3d4e5f6 on main.",
    "billing_v2": "The table is called billing_v2 now.",
    "TICKET-8812": "It is tracked as TICKET-8812 by them.",
    "Mara Quint": "Talk to Mara Quint about it.",
    "Heron": "The project is called Heron inside the company.",
    "Lisbon": "The servers are in Lisbon at the moment.",
    "Postgres": "It runs on Postgres as you know.",
    "Vela Systems": "The customer is Vela Systems again.",
    "hello brave world": 'It greets with "hello brave world" at the start.',
    "make nightly-report": "He ran `make nightly-report` by hand.",
    "Never touch the billing tables.": "Never touch the billing tables.",
    "You must keep the old endpoint for two more releases.": "You must keep the old endpoint for two more releases.",
    "Do not add a dependency without asking me.": "Do not add a dependency without asking me.",
    "Always answer in short sentences.": "Always answer in short sentences.",
}


def conversation(random: Random) -> list[dict[str, Any]]:
    """The planted sentences, spread over a talk."""
    sentences = list(PLANTED.values())
    random.shuffle(sentences)
    talk: list[dict[str, Any]] = [{"role": "system", "content": "You help. See SECRET_SETTING and 999888."}]
    for number in range(0, len(sentences), 2):
        pair = sentences[number : number + 2]
        talk.append({"role": "user", "content": [{"type": "text", "text": f"Well. {' '.join(pair)} Go on"}]})
        talk.append({"role": "assistant", "content": "That is done. What comes next?"})
    return talk


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kept", [0, 10, 20, 30])
def test_of_thirty_facts_those_that_a_summary_lacks_are_named_and_no_other(seed: int, kept: int) -> None:
    random = Random(seed)
    talk = conversation(random)
    in_summary = random.sample(sorted(PLANTED), kept)
    summary = [
        {"role": "user", "content": "Summary so far. " + " ".join(PLANTED[each] for each in in_summary)}
    ]
    missing = {fact.text for fact in left_out(facts_in(talk), summary)}
    expected = PLANTED.keys() - in_summary
    assert len(missing & expected) >= 0.95 * len(expected)
    assert not missing & set(in_summary)
    # What else is named stands in a sentence that the summary lacks.
    elsewhere = " ".join(PLANTED[each] for each in expected)
    assert all(fact in elsewhere for fact in missing), missing - PLANTED.keys()


def test_a_fact_says_where_it_was_said_first() -> None:
    talk = [
        {"role": "user", "content": "The port is 8731."},
        {"role": "assistant", "content": "I set 8731 in Lisbon/port.txt."},
        {"role": "tool", "content": "99 files, 12345 lines"},
    ]
    found = {fact.text: (fact.kind, fact.message, fact.role) for fact in facts_in(talk)}
    assert found == {
        "8731": (FactKind.NUMBER, 0, "user"),
        "Lisbon/port.txt": (FactKind.PATH, 1, "assistant"),
    }


@pytest.mark.parametrize(
    ("said", "summary"),
    [
        ("It costs 12,500 EUR.", "Costs 12500."),
        ("Wait 45 s for it.", "a wait of 45 seconds"),
        ("Ask for Mara Quint there.", "(MARA QUINT)"),
        ("Never touch the billing tables.", "The billing tables must not be touched: never touch them."),
        ("See `the file`.", "see the\nfile now"),
    ],
)
def test_what_a_summary_words_otherwise_is_not_left_out(said: str, summary: str) -> None:
    facts = facts_in([{"role": "user", "content": said}])
    assert facts
    assert left_out(facts, [{"role": "user", "content": summary}]) == []


@pytest.mark.parametrize(
    "text", ["", "1. Do it\n2. Try it", "Well. Yes! No?", "a" * 100_000, "(" * 20_000 + "1/" * 20_000]
)
def test_text_without_facts_has_none(text: str) -> None:
    assert len(facts_in([{"role": "user", "content": text}])) <= 1


@pytest.mark.parametrize("piece", ["Talk to Mara Quint about 4711. ", "see src/auth/session.py\n", "x"])
def test_of_a_long_text_the_facts_behind_its_first_characters_are_found_too(piece: str) -> None:
    text = piece * (300_000 // len(piece)) + " Ask for Zoe Winter in Lisbon/port.txt."
    facts = facts_in([{"role": "user", "content": text}])
    assert {"Zoe Winter", "Lisbon/port.txt"} <= {fact.text for fact in facts}
    assert left_out(facts, [{"role": "user", "content": text}]) == []


@pytest.mark.parametrize(
    ("said", "others"),
    [
        ("See /etc/heron there.", ["x/etc/heron", "/etc/herons"]),
        ("Ask for Mara Quint there.", ["Amara Quint", "Mara Quints", "Mara/Quint", "/Mara Quint"]),
        ("Run it --no-cache there.", ["x--no-cache", "--no-caches"]),
    ],
)
def test_a_part_of_another_word_is_no_mention(said: str, others: list[str]) -> None:
    (fact,) = facts_in([{"role": "assistant", "content": said}])
    for other in others:
        assert left_out([fact], [{"role": "user", "content": f"({other})"}]) == [fact]
