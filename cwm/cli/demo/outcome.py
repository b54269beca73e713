"""The demo's measurements, and checks of its claims."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from cwm.domain.notation import size


@dataclass(frozen=True, slots=True)
class Continuation:
    """Greedy tokens generated after a prompt.

    ``cached`` prompt tokens were not computed; ``from_store`` of them were loaded from LMCache for this request.
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    cached: int
    from_store: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Without the long prompt."""
        return {
            "prompt_tokens": len(self.prompt_ids),
            "cached_tokens": self.cached,
            "token_ids": list(self.token_ids),
            "text": self.text,
        }


_VERIFIED: Final = frozenset({"exact", "within_noise"})


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the demo measured. Times are in ms; ``tiers`` has the number of restored tokens by tier."""

    model: str
    killed: tuple[str, ...]
    restarted: tuple[str, ...]
    dtype: str
    tokens: int
    chunk_size: int
    chunks: int
    bytes: int
    durable: bool
    freeze_ms: int
    restart_ms: int
    thaw_ms: int
    verification: str
    verify_ms: int
    cold_prefill_ms: int
    tokens_restored: int
    tokens_recomputed: int
    whole_chunk_tokens: int
    tiers: dict[str, int]
    reference: Continuation
    continuation: Continuation

    @property
    def identical(self) -> bool:
        """Whether prompt, tokens and text are the same."""
        ours, theirs = self.continuation, self.reference
        return (ours.prompt_ids, ours.token_ids, ours.text) == (
            theirs.prompt_ids,
            theirs.token_ids,
            theirs.text,
        )

    @property
    def is_verified(self) -> bool:
        return self.verification in _VERIFIED

    @property
    def identity(self) -> str:
        """Whether the continuation is identical and, if not, why it need not be."""
        if self.identical:
            return "yes"
        if self.is_verified and self.dtype != "float32":
            return f"no: the KV is the same ({self.verification}), but {self.dtype} rounds otherwise in batches of other shapes"
        return "no"

    @property
    def speed_up(self) -> float:
        return round(self.cold_prefill_ms / max(self.thaw_ms, 1), 1)

    def untrue(self) -> list[str]:
        """The claims of the demo that the measurements contradict; empty when all of them hold."""
        vllm_died = "vllm" in self.killed
        claims = {
            "the continuation is not identical": self.identity != "no",
            "the freeze was not durable": self.durable,
            "not every whole block was restored": self.tokens_restored >= self.whole_chunk_tokens,
            "a killed part was not started again": set(self.killed) <= set(self.restarted),
            "the uninterrupted run took KV from the store": self.reference.from_store == 0,
            "the restored KV was not verified": self.is_verified,
            "nothing was generated": bool(self.reference.token_ids),
            "KV survived in the killed engine": not vllm_died or "gpu" not in self.tiers,
            "the continuation found more KV than the window had": not vllm_died
            or self.continuation.cached <= self.chunks * self.chunk_size,
        }
        return [sentence for sentence, holds in claims.items() if not holds]

    def facts(self) -> list[tuple[str, str]]:
        """The rows of the closing table."""
        tiers = ", ".join(f"{tier} {tokens:,}" for tier, tokens in self.tiers.items()) or "none"
        return [
            ("tokens in the window", f"{self.tokens:,}"),
            ("chunks", f"{self.chunks:,} of {self.chunk_size} tokens"),
            ("bytes", f"{self.bytes:,} ({size(self.bytes)})"),
            ("restored from (tokens)", tiers),
            ("freeze", f"{self.freeze_ms:,} ms"),
            ("thaw", f"{self.thaw_ms:,} ms"),
            ("verified", f"{self.verification}, in {self.verify_ms:,} ms more"),
            ("cold prefill", f"{self.cold_prefill_ms:,} ms"),
            ("speed-up", f"{self.speed_up:g} x"),
            ("tokens restored", f"{self.tokens_restored:,}"),
            ("tokens recomputed", f"{self.tokens_recomputed:,}"),
            ("identical", self.identity),
        ]

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "reference": self.reference.as_dict(),
            "continuation": self.continuation.as_dict(),
            "speed_up": self.speed_up,
            "identical": self.identical,
            "untrue": self.untrue(),
        }
