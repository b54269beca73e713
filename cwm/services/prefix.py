"""Token ids under a salt on one engine: what is stored, loaded and asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cwm.domain.engine import EngineIdentity
from cwm.domain.prefix import TokenIds, full_chunks
from cwm.ports.engine import Generation
from cwm.ports.kv_tier import PrefixKey


@dataclass(frozen=True, slots=True)
class Prefix:
    """Everything a store or a load is about."""

    token_ids: TokenIds
    cache_salt: str
    identity: EngineIdentity

    @property
    def chunk_count(self) -> int:
        return (
            full_chunks(len(self.token_ids), self.identity.chunk_size or 0) if self.identity.chunk_size else 0
        )

    @property
    def ends_a_chunk(self) -> bool:
        """Whether its last token completes a chunk: after a turn nobody has computed that token, it was sampled last."""
        return self.chunk_count > 0 and len(self.token_ids) % (self.identity.chunk_size or 1) == 0

    @property
    def key(self) -> PrefixKey:
        return PrefixKey(self.identity.root, self.identity.world_size, self.token_ids, self.cache_salt)

    def up_to(self, token_count: int | None) -> Prefix:
        """Its first tokens; the whole of it for None."""
        return self if token_count is None else replace(self, token_ids=self.token_ids[:token_count])

    def request(self) -> Generation:
        """The shortest request that makes the engine hold this prefix: it computes one more token."""
        return Generation(
            self.identity.model, self.token_ids, self.cache_salt, max_tokens=1, sampling={"temperature": 0}
        )


def fitting(token_ids: TokenIds, identity: EngineIdentity) -> TokenIds:
    """What can be sent: the engine needs room for one more token, and clamps silently."""
    return token_ids[: identity.max_model_len - 1]
