"""What a prefix stores, names and asks for is one and the same number of chunks."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cwm.adapters.lmcache.hashes import chunk_hashes
from cwm.domain.engine import EngineIdentity
from cwm.services.kv.prefix import Prefix

IDENTITY = EngineIdentity("m", "/m", "fp-1", 8192, "0.32.0", 32, 32, "blake3")

_prefixes = st.builds(
    lambda count, chunk: Prefix(tuple(range(count)), "salt", replace(IDENTITY, chunk_size=chunk)),
    st.integers(0, 300),
    st.integers(1, 64),
)


@given(_prefixes)
def test_its_key_names_the_chunks_that_its_kv_fills(prefix: Prefix) -> None:
    chunk_size = prefix.identity.chunk_size or 0
    assert len(chunk_hashes(prefix.key.token_ids, chunk_size)) == prefix.chunk_count
    assert prefix.stored_tokens == prefix.chunk_count * chunk_size
    assert prefix.chunk_count == 0 or prefix.stored_tokens < len(prefix.token_ids)


@given(_prefixes, st.integers(0, 10))
def test_a_key_of_some_of_its_chunks_names_so_many(prefix: Prefix, chunks: int) -> None:
    chunk_size = prefix.identity.chunk_size or 0
    named = chunk_hashes(prefix.key_of(chunks * chunk_size).token_ids, chunk_size)
    assert named == chunk_hashes(prefix.key.token_ids, chunk_size)[:chunks]


@given(_prefixes)
def test_its_request_computes_all_of_it_and_stores_its_chunks_only(prefix: Prefix) -> None:
    request = prefix.request()
    assert (request.token_ids, request.store_tokens) == (prefix.token_ids, prefix.stored_tokens)


def test_without_lmcache_there_is_nothing_to_store_and_nothing_to_limit() -> None:
    prefix = Prefix(tuple(range(100)), "salt", replace(IDENTITY, chunk_size=None))
    assert (prefix.chunk_count, prefix.stored_tokens, prefix.request().store_tokens) == (0, 0, None)
