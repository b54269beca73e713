"""The durable record of conversations of OpenAI's API. A conversation goes with the session of its last turn.

Methods that take an owner answer only about theirs. Errors are those of the registry: CWM-4001 (writing), CWM-4002 (reading), CWM-4004 for a
damaged item.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cwm.domain.response import Item, StoredConversation
from cwm.domain.session import SessionsSince


class ConversationRecords(Protocol):
    async def add(self, conversation: StoredConversation, items: Sequence[Item]) -> None:
        """A new one with these items, each with an id."""

    async def conversation(
        self, tenant: str, owner: str, conversation_id: str
    ) -> StoredConversation | None: ...

    async def items(self, tenant: str, owner: str, conversation_id: str) -> list[Item]:
        """The first first."""

    async def change(self, conversation: StoredConversation, items: Sequence[Item] = ()) -> bool:
        """Write the metadata, ``last_response``, ``touched_at`` and, unless it is deleted, the session; append the items. False if it is gone."""

    async def remove_item(self, tenant: str, owner: str, conversation_id: str, item_id: str) -> bool:
        """From then on it has no ``last_response``. False if there is no such item."""

    async def remove(self, tenant: str, owner: str, conversation_id: str) -> bool:
        """False if there is none."""

    async def hold(
        self, tenant: str, owner: str, conversation_id: str, holder: str, instead_of: str | None = None
    ) -> str | None:
        """Hold it, unless another than ``instead_of`` does: who does then, else None."""

    async def let_go(self, tenant: str, owner: str, conversation_id: str, holder: str) -> None:
        """Hold it no longer, if the ``holder`` does."""

    async def of_owner(
        self, tenant: str, owner: str, after: str = "", limit: int = 100
    ) -> list[StoredConversation]:
        """Those of the owner with ids behind ``after``, ordered by id."""

    async def unused_of_every_tenant(self, query: SessionsSince) -> list[StoredConversation]:
        """Those without a session, as ``query`` says, the one unused for longest first."""
