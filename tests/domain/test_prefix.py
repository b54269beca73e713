from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain import prefix

_ids = st.lists(st.integers(0, 2**32 - 1), max_size=300).map(tuple)
_few = st.lists(st.integers(0, 2), max_size=12).map(tuple)


@given(_ids)
def test_unpack_is_the_inverse_of_pack(ids: tuple[int, ...]) -> None:
    packed = prefix.pack(ids)
    assert len(packed) == prefix.TOKEN_BYTES * len(ids)
    assert prefix.unpack(packed) == ids


def test_ids_are_packed_low_byte_first_on_every_machine() -> None:
    assert prefix.pack([1, 0x0A0B0C0D]) == b"\x01\x00\x00\x00\x0d\x0c\x0b\x0a"


@pytest.mark.parametrize("impossible", [-1, 2**32])
def test_an_id_that_no_tokenizer_has_is_not_packed(impossible: int) -> None:
    with pytest.raises(OverflowError):
        prefix.pack([impossible])


def test_a_digest_is_sha256_of_the_packed_ids() -> None:
    assert prefix.digest(()) == hashlib.sha256(b"").hexdigest()
    assert prefix.digest((1,)) == hashlib.sha256(b"\x01\x00\x00\x00").hexdigest()


@given(_few, _few)
def test_digests_are_equal_only_for_equal_ids(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    assert (prefix.digest(a) == prefix.digest(b)) == (a == b)


@given(_few, _few)
def test_the_common_length_is_the_longest_shared_prefix(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    shared = prefix.common_length(a, b)
    assert shared == prefix.common_length(b, a)
    assert a[:shared] == b[:shared]
    assert a[: shared + 1] != b[: shared + 1] or shared == len(a) == len(b)


@given(_few, _few)
def test_a_prefix_is_shared_whole_with_what_extends_it(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    assert prefix.common_length(a, a + b) == len(a)


@given(st.integers(0, 10_000), st.integers(16, 512))
def test_only_whole_chunks_of_all_but_the_last_token_are_restorable(tokens: int, chunk: int) -> None:
    restorable = prefix.restorable_tokens(tokens, chunk)
    assert restorable == prefix.stored_chunks(tokens, chunk) * chunk
    assert restorable == 0 if tokens == 0 else 1 <= tokens - restorable <= chunk


@given(st.integers(0, 10_000), st.integers(16, 512))
def test_the_next_token_fills_the_chunk_that_the_last_one_left_open(tokens: int, chunk: int) -> None:
    assert prefix.stored_chunks(tokens + 1, chunk) == prefix.full_chunks(tokens, chunk)
