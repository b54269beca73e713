"""The receipt of a thaw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cwm.domain.engine import Difference
from cwm.domain.planner import Plan
from cwm.domain.prefix import stored_chunks
from cwm.domain.verdict import Evidence, Verification
from cwm.domain.window import Durability, Window
from cwm.services.kv.prefix import Prefix


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a thaw did, as the engine and LMCache report it. Counts in tokens, times in ms.

    ``tokens_by_tier``: where restored tokens came from; ``gpu`` is the engine's own cache.
    ``engine_changes``: differences from the engine that froze the window; if there are any, its KV is not used.
    ``plan`` predicts the sum of ``prefetch_ms`` and ``engine_ms``.
    ``evidence`` is about the KV that was restored first, also if the session goes on from computed KV.
    """

    tokens_restored: int
    tokens_recomputed: int
    tokens_by_tier: Mapping[str, int]
    blocks_found: int
    blocks_total: int
    prefetch_ms: float
    engine_ms: float
    plan: Plan
    evidence: Evidence
    verify_ms: float
    engine_changes: tuple[Difference, ...] = ()


def warning_of(window: Window, prefix: Prefix, receipt: Receipt) -> str | None:
    """Why fewer tokens were restored than frozen, or why none could be; None if every block was restored.

    The tail, from one token to one block, is always computed again and is not counted.
    """
    if receipt.evidence.verification is Verification.MISMATCH:
        return (
            "The restored KV is wrong: it was discarded, and "
            f"{receipt.tokens_recomputed} tokens were computed again."
        )
    if receipt.evidence.verification is Verification.UNDECIDED:
        return (
            f"It could not be decided whether the restored KV is right ({receipt.evidence.reason}): nothing was deleted, and "
            f"{receipt.tokens_recomputed} tokens were computed again for this session."
        )
    if prefix.identity.no_reuse:
        return f"{prefix.identity.no_reuse} {receipt.tokens_recomputed} tokens were computed again."
    missing = _missing_tokens(window, prefix, receipt)
    if missing == 0:
        return None
    changes = ", ".join(str(change) for change in receipt.engine_changes if not change.changes_tokens)
    reason = f" The engine is not the one the window was frozen on: {changes}." if changes else ""
    return f"{missing} tokens could not be restored and were computed again.{reason}"


def is_partial(window: Window, prefix: Prefix, receipt: Receipt) -> bool:
    """Whether fewer tokens were restored than frozen: blocks were lost, are another engine's, or were not continued from."""
    discarded = receipt.evidence.verification in {Verification.MISMATCH, Verification.UNDECIDED}
    return discarded or _missing_tokens(window, prefix, receipt) > 0


def _missing_tokens(window: Window, prefix: Prefix, receipt: Receipt) -> int:
    """How many tokens of the window's blocks were not restored, as the plan wanted."""
    chunk = window.identity.stored_chunk or 0
    blocks = window.block_count
    if window.durability is not Durability.DURABLE and chunk:
        blocks = stored_chunks(len(prefix.token_ids), chunk)
    expected_tokens = min(blocks * chunk, len(prefix.token_ids) - 1)
    if receipt.plan.load_tokens is not None:
        expected_tokens = min(expected_tokens, receipt.plan.load_tokens)
    return max(0, expected_tokens - receipt.tokens_restored)
