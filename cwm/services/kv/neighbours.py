"""Live sessions whose contexts begin as a prefix does: they may use its chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator

from cwm.domain.errors import SessionNotFoundError
from cwm.domain.prefix import TokenIds
from cwm.ports.registry import Registry


async def neighbours(
    registry: Registry, tenant: str, salt_scope: str, token_ids: TokenIds
) -> AsyncIterator[tuple[str, TokenIds]]:
    """The id and the context of each. One that ends meanwhile is left out."""
    for session_id in await registry.live_sessions_with_head(tenant, salt_scope, token_ids):
        try:
            context = await registry.session_tokens(tenant, session_id)
        except SessionNotFoundError:
            continue
        yield session_id, context
