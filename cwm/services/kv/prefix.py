"""A prefix: token ids under one salt on one engine."""

from __future__ import annotations

from dataclasses import dataclass

from cwm.domain.engine import EngineIdentity
from cwm.domain.prefix import TokenIds, stored_chunks
from cwm.ports.engine import Generation
from cwm.ports.kv_tier import PrefixKey


@dataclass(frozen=True, slots=True)
class Prefix:
    """The unit of every store and load. Its last token was sampled and never computed, so it has no KV to store."""

    token_ids: TokenIds
    cache_salt: str
    identity: EngineIdentity

    @property
    def chunk_count(self) -> int:
        chunk_size = self.identity.stored_chunk
        return stored_chunks(len(self.token_ids), chunk_size) if chunk_size else 0

    @property
    def stored_tokens(self) -> int:
        return self.chunk_count * (self.identity.stored_chunk or 0)

    @property
    def key(self) -> PrefixKey:
        """The key of all ``chunk_count`` chunks."""
        return self.key_of(None)

    def key_of(self, token_count: int | None) -> PrefixKey:
        """The key of the chunks of the first ``token_count`` tokens; None: of all of them."""
        return PrefixKey(
            self.identity.root,
            self.identity.world_size,
            self.token_ids[:-1][:token_count],
            self.cache_salt,
            self.identity.engine,
        )

    def request(self, token_count: int | None = None) -> Generation:
        """The shortest request that makes the engine hold the first ``token_count`` tokens (None: all).

        The engine stores this prefix's chunks and no more, and computes one more token.
        """
        return Generation(
            self.identity.model,
            self.token_ids[:token_count],
            self.cache_salt,
            max_tokens=1,
            sampling={"temperature": 0},
            store_tokens=self.stored_tokens if self.identity.stored_chunk else None,
            weights=self.identity.expected,
            engine=self.identity.engine,
        )


def fitting(token_ids: TokenIds, identity: EngineIdentity) -> TokenIds:
    """The tokens that can be sent: the engine needs room for one more, and otherwise truncates silently."""
    return token_ids[: identity.max_model_len - 1]
