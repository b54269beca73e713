"""What earlier verdicts prove of the KV that a window is frozen from."""

from __future__ import annotations

from cwm.domain.prefix import TokenIds, digest
from cwm.domain.session import UNVERIFIED
from cwm.domain.window import Window
from cwm.ports.registry import Registry


async def proven_tokens_of(registry: Registry, window: Window, token_ids: TokenIds) -> int:
    """How many leading tokens of a window its session's thaw has proven; 0 if the session began otherwise, or nothing proved it.

    The window that the session was thawed from must still be proven: it may have been condemned since.
    """
    branch_token = window.branch_token or 0
    if window.parent_window is None or not branch_token:
        return 0
    session = await registry.session(window.tenant, window.session_id, any_state=True)
    if session is None or session.thawed_from is None or UNVERIFIED in session.metadata:
        return 0
    canary = await registry.canary(window.tenant, digest(token_ids[:branch_token]), window.cache_salt)
    return branch_token if canary is not None and canary.origin.is_proven else 0
