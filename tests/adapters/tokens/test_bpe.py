"""Counts in a real vocabulary, against the library that is the reference for it."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from threading import Thread

import pytest
import splintr
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from cwm.adapters.tokens.bpe import BpeTokenCounter
from cwm.domain.token_estimate import COUNTED_CHARS
from cwm.ports.token_counter import TokenCounter
from cwm_bench.harness import token_corpus

PUBLISHED_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
TOKENS = 199_998
# What is not assigned yet may be a letter to one library and none to another.
ASSIGNED = st.characters(exclude_categories=("Cs", "Cn"))
PATHOLOGICAL = {
    "one letter": "A" * 50_000,
    "spaces": " " * 50_000,
    "lines": "\n" * 50_000,
    "carets": "^" * 50_000,
    "no break": "abcdefghij" * 5_000,
    "family": "👩‍👩‍👧‍👦" * 3_000,
    "marks": "a\u0301\u0302" * 9_000,
    "control": "<|endoftext|>\x00\x7f" * 1_000,
}


@cache
def vocabulary() -> dict[bytes, int]:
    tokenizer = splintr.Tokenizer.from_pretrained("o200k_base")
    return {tokenizer.decode_token_bytes(rank): rank for rank in range(TOKENS)}


@cache
def reference() -> tiktoken.Encoding:
    return tiktoken.Encoding(
        "o200k_base", pat_str=splintr.O200K_BASE_PATTERN, mergeable_ranks=vocabulary(), special_tokens={}
    )


@pytest.fixture(scope="module")
def counter() -> BpeTokenCounter:
    return BpeTokenCounter()


def test_the_vocabulary_is_the_published_one() -> None:
    lines = (base64.b64encode(token) + b" %d\n" % rank for token, rank in vocabulary().items())
    assert hashlib.sha256(b"".join(lines)).hexdigest() == PUBLISHED_SHA256


def test_nothing_is_no_token(counter: BpeTokenCounter) -> None:
    port: TokenCounter = counter
    assert port.count("") == 0


@pytest.mark.parametrize("kind", token_corpus.KINDS)
def test_a_count_is_the_references(counter: BpeTokenCounter, kind: str) -> None:
    text = token_corpus.text(kind, 60_000)
    counted = counter.count(text)
    assert counted == pytest.approx(len(reference().encode_ordinary(text)), abs=2)


@pytest.mark.parametrize("kind", PATHOLOGICAL)
def test_a_text_without_words_is_counted_to_a_few_tokens(counter: BpeTokenCounter, kind: str) -> None:
    text = PATHOLOGICAL[kind]
    assert counter.count(text) == pytest.approx(len(reference().encode_ordinary(text)), rel=0.002)


@settings(deadline=None)
@given(st.text(ASSIGNED, max_size=400))
def test_any_text_is_counted_as_the_reference_does(text: str) -> None:
    assert BpeTokenCounter().count(text) == len(reference().encode_ordinary(text))


@settings(deadline=None)
@given(st.text(ASSIGNED, max_size=200), st.text(ASSIGNED, max_size=200))
def test_two_texts_together_take_about_what_they_take_alone(one: str, other: str) -> None:
    counter = BpeTokenCounter()
    alone = counter.count(one) + counter.count(other)
    assert counter.count(one + other) <= alone + 4
    assert counter.count(one + other) >= max(counter.count(one), counter.count(other)) - 4


@pytest.mark.parametrize("kind", token_corpus.KINDS)
def test_an_estimate_is_within_five_per_cent(counter: BpeTokenCounter, kind: str) -> None:
    text = token_corpus.text(kind, COUNTED_CHARS + 50_000, seed=3)
    assert counter.count(text) == pytest.approx(counter.count_whole(text), rel=0.05)


def test_the_same_text_always_counts_the_same(counter: BpeTokenCounter) -> None:
    text = token_corpus.text("mixed", 700_000, seed=1)
    assert counter.count(text) == BpeTokenCounter().count(text) == counter.count(text)


def test_half_a_character_counts_as_what_replaces_it(counter: BpeTokenCounter) -> None:
    assert counter.count("a \ud83d b") == counter.count("a \ufffd\ufffd\ufffd b")


def test_words_that_were_met_are_forgotten_in_time(counter: BpeTokenCounter) -> None:
    kept = []
    for seed in range(20):
        counter.count(token_corpus.text("base64", 100_000, seed=100 + seed))
        kept.append(counter.load().cache_len)
    assert max(kept[10:]) <= 1.1 * max(kept[:10])


def test_threads_that_load_at_once_share_one_vocabulary() -> None:
    counters = [BpeTokenCounter("cl100k_base") for _ in range(4)]
    threads = [Thread(target=counter.load) for counter in counters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(counter.load()) for counter in counters}) == 1


def test_another_vocabulary_counts_otherwise() -> None:
    text = token_corpus.text("cjk", 5_000)
    assert BpeTokenCounter("cl100k_base").count(text) > BpeTokenCounter().count(text)
