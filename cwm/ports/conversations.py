"""The durable record of conversations of OpenAI's API. A conversation goes with the session of its last turn.

Methods that take an owner answer only about theirs. Errors are those of the registry: CWM-4001 (writing), CWM-4002 (reading), CWM-4004 for a
damaged item.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cwm.domain.response import Item, ItemPage, ItemQuery, ItemSum, StoredConversation
from cwm.domain.session import SessionsSince
from cwm.domain.weight import MOST_AT_ONCE


class ConversationRecords(Protocol):
    async def add(self, conversation: StoredConversation, items: Sequence[Item]) -> None:
        """A new one with these items, each with an id."""

    async def conversation(
        self, tenant: str, owner: str, conversation_id: str
    ) -> StoredConversation | None: ...

    async def items(
        self, tenant: str, owner: str, conversation_id: str, most: int = MOST_AT_ONCE
    ) -> list[Item]:
        """All of them, the first first. CWM-4006 if they weigh more than ``most`` together."""

    async def page(self, tenant: str, owner: str, conversation_id: str, query: ItemQuery) -> ItemPage | None:
        """None if there is no item with the id ``query.after``. CWM-4006 if the first of them is too large to be read."""

    async def item(self, tenant: str, owner: str, conversation_id: str, item_id: str) -> Item | None:
        """CWM-4006 if it is too large to be read."""

    async def ids_among(
        self, tenant: str, owner: str, conversation_id: str, item_ids: Sequence[str]
    ) -> set[str]:
        """Those of the ids that items of it have."""

    async def sum(self, tenant: str, owner: str, conversation_id: str) -> ItemSum:
        """How many items it has, and what they weigh together; nothing of one that is not there."""

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
