"""Conversations that clients create, and to which their responses are added."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import uuid4

from cwm.domain.errors import (
    ConversationLockedError,
    CwmError,
    InvalidParameterError,
    ResponseNotFoundError,
)
from cwm.domain.json_text import is_long
from cwm.domain.principal import Principal
from cwm.domain.response import (
    ContextLimit,
    Item,
    ItemPage,
    ItemQuery,
    ItemSum,
    StoredConversation,
    is_id,
    named,
)
from cwm.domain.weight import MOST_AT_ONCE, compact_ascii, weight_of
from cwm.ports.clock import Clock
from cwm.ports.conversations import ConversationRecords
from cwm.services.access.storage import Storage
from cwm.services.audit.journal import Journal
from cwm.services.replicas import Replicas
from cwm.threads import aside

_LONGEST_ID: Final = 128


@dataclass(frozen=True, slots=True)
class StoredConversations:
    """A principal's conversations are its own: somebody else's are not there. ``keeps``: whether what a tenant says is kept.

    While a response is added to a conversation, its process holds it: no other response is then, until that process lets go or has died.
    """

    records: ConversationRecords
    clock: Clock
    replicas: Replicas
    journal: Journal
    keeps: Callable[[str], bool]
    limit: ContextLimit = field(default_factory=ContextLimit)
    storage: Storage | None = None
    _holders: set[str] = field(default_factory=set)

    async def create(
        self, principal: Principal, metadata: Mapping[str, str], items: Sequence[Item]
    ) -> StoredConversation:
        """CWM-1003 where what is said is not kept; CWM-1005 for more than a conversation holds, 4003."""
        conversation_id, now = f"conv_{uuid4().hex}", self.clock.now()
        async with self._entry(principal, "conversation_create", conversation_id, items=len(items)):
            if not self.keeps(principal.tenant):
                raise InvalidParameterError(
                    "Conversations are not kept here: the operator's 'keep.messages' is none."
                )
            await self._require_storage(principal)
            await self._require_room(ItemSum(0, 0), items, "items")
            conversation = StoredConversation(
                principal.tenant, conversation_id, principal.subject, now, now, metadata
            )
            await self.records.add(conversation, _new(items, set()))
            return conversation

    async def conversation(self, principal: Principal, conversation_id: str) -> StoredConversation:
        """CWM-2008."""
        conversation = None
        if is_id(conversation_id):
            conversation = await self.records.conversation(
                principal.tenant, principal.subject, conversation_id
            )
        if conversation is None:
            raise _not_found("Conversation", conversation_id)
        return conversation

    async def describe(
        self, principal: Principal, conversation_id: str, metadata: Mapping[str, str]
    ) -> StoredConversation:
        """The conversation with new metadata. CWM-2008."""
        async with self._entry(principal, "conversation_update", conversation_id):
            conversation = await self.conversation(principal, conversation_id)
            return await self._changed(replace(conversation, metadata=metadata), ())

    async def delete(self, principal: Principal, conversation_id: str) -> None:
        """Its session stays. CWM-2008."""
        async with self._entry(principal, "conversation_delete", conversation_id):
            await self.conversation(principal, conversation_id)
            await self.records.remove(principal.tenant, principal.subject, conversation_id)

    async def page(self, principal: Principal, conversation_id: str, query: ItemQuery) -> ItemPage:
        """Items of the conversation. CWM-1003 for an unknown ``after``, CWM-2008, 4006."""
        await self.conversation(principal, conversation_id)
        page = None
        if query.after is None or is_id(query.after):
            page = await self.records.page(principal.tenant, principal.subject, conversation_id, query)
        if page is None:
            raise unknown_after(query)
        return page

    async def item(self, principal: Principal, conversation_id: str, item_id: str) -> Item:
        """CWM-2008, 4006."""
        await self.conversation(principal, conversation_id)
        item = None
        if is_id(item_id):
            whose = (principal.tenant, principal.subject, conversation_id)
            item = await self.records.item(*whose, item_id)
        if item is None:
            raise _not_found("Item", item_id)
        return item

    async def add(self, principal: Principal, conversation_id: str, items: Sequence[Item]) -> list[Item]:
        """The items as they were appended. CWM-1003 for an id that is there already, 1005, 2008, 4003."""
        async with self._entry(principal, "conversation_add_items", conversation_id, items=len(items)):
            conversation = await self.conversation(principal, conversation_id)
            whose = (principal.tenant, principal.subject, conversation_id)
            await self._require_storage(principal)
            await self._require_room(await self.records.sum(*whose), items, "items")
            new = await self._new_in(whose, items)
            await self._changed(replace(conversation, last_response=None), new)
            return new

    async def delete_item(
        self, principal: Principal, conversation_id: str, item_id: str
    ) -> StoredConversation:
        """The conversation without the item. CWM-2008."""
        async with self._entry(
            principal, "conversation_delete_item", conversation_id, item=item_id[:_LONGEST_ID]
        ):
            conversation = await self.conversation(principal, conversation_id)
            whose = (principal.tenant, principal.subject)
            if not is_id(item_id) or not await self.records.remove_item(*whose, conversation_id, item_id):
                raise _not_found("Item", item_id)
            return conversation

    async def hold(
        self, principal: Principal, conversation_id: str, response_id: str, items: Sequence[Item]
    ) -> tuple[StoredConversation, list[Item]]:
        """The conversation and its items, to which the response and the ``items`` of its request are to be added.

        CWM-1003 for an item that is in it, CWM-1005 if all is more than a request may go on from, CWM-2008, CWM-3010.
        """
        await self.conversation(principal, conversation_id)
        holder = self._holder(response_id)
        which = (principal.tenant, principal.subject, conversation_id, holder)
        self._holders.add(holder)
        other = await self.records.hold(*which)
        if other is not None and await self._is_gone(other):
            other = await self.records.hold(*which, instead_of=other)
        if other is not None:
            self._holders.discard(holder)
            raise ConversationLockedError(
                "Another process is currently operating on this conversation. Please retry in a few seconds.",
                field="conversation",
            )
        whose = (principal.tenant, principal.subject, conversation_id)
        # What is answered is added, whatever it takes: a request that is not recorded counts, too.
        await self._require_storage(principal)
        await self._require_room(await self.records.sum(*whose), items, "conversation")
        await self._new_in(whose, items)
        before = await self.records.items(*whose, self.limit.weight)
        return await self.conversation(principal, conversation_id), before

    def holds(self, response_id: str) -> bool:
        return self._holder(response_id) in self._holders

    async def let_go(self, principal: Principal, conversation_id: str, response_id: str) -> None:
        """Whatever becomes of the record: nobody takes a holder for alive that this process forgot."""
        holder = self._holder(response_id)
        self._holders.discard(holder)
        with suppress(CwmError):
            await self.records.let_go(principal.tenant, principal.subject, conversation_id, holder)

    async def append(
        self,
        conversation: StoredConversation,
        items: Sequence[Item],
        session_id: str | None,
        last_response: str | None,
    ) -> None:
        """Add what was asked and answered in a session; one that is deleted by now stays so."""
        if session_id is not None:
            conversation = replace(conversation, session_id=session_id)
        with suppress(ResponseNotFoundError):
            await self._changed(replace(conversation, last_response=last_response), [*map(named, items)])

    @asynccontextmanager
    async def _entry(
        self, principal: Principal, operation: str, conversation_id: str, **details: Any
    ) -> AsyncIterator[None]:
        async with self.journal.entry(principal, operation) as entry:
            entry.update(conversation=conversation_id[:_LONGEST_ID], **details)
            yield

    async def _changed(self, conversation: StoredConversation, items: Sequence[Item]) -> StoredConversation:
        conversation = replace(conversation, touched_at=self.clock.now())
        if not await self.records.change(conversation, items):
            raise _not_found("Conversation", conversation.id)
        return conversation

    async def _require_storage(self, principal: Principal) -> None:
        if self.storage is not None:
            await self.storage.require_room(principal.tenant, principal.subject)

    async def _require_room(self, stored: ItemSum, items: Sequence[Item], field: str) -> None:
        """CWM-1005."""
        weight = await weight_of_items(items)
        self.limit.require_items(stored, len(items), weight, field)

    async def _new_in(self, whose: tuple[str, str, str], items: Sequence[Item]) -> list[Item]:
        given = [item["id"] for item in items if is_id(item.get("id"))]
        return _new(items, await self.records.ids_among(*whose, given) if given else set())

    def _holder(self, response_id: str) -> str:
        return f"{self.replicas.me} {response_id}"

    async def _is_gone(self, holder: str) -> bool:
        process = holder.rpartition(" ")[0]
        return (
            holder not in self._holders if process == self.replicas.me else await self.replicas.gone(process)
        )


async def weight_of_items(items: Sequence[Item]) -> int:
    """What they take in memory together."""
    size = MOST_AT_ONCE if is_long(items) else 0
    return await aside(size, lambda: weight_of(compact_ascii(items)))


def unknown_after(query: ItemQuery) -> InvalidParameterError:
    return InvalidParameterError(f"Item with id '{(query.after or '')[:128]}' not found.", field="after")


def _new(items: Sequence[Item], others: set[str]) -> list[Item]:
    """The items, each with an id of its own, which none of the ``others`` is."""
    ids, new = set(others), [*map(named, items)]
    for item in new:
        if item["id"] in ids:
            raise InvalidParameterError(
                f"Duplicate item found with id {item['id']}. Remove duplicate items from your input and try again.",
                field="input",
            )
        ids.add(item["id"])
    return new


def _not_found(noun: str, its_id: str) -> ResponseNotFoundError:
    return ResponseNotFoundError(f"{noun} with id '{its_id[:128]}' not found.")
