"""Responses: what a request refers to, and what is kept to be referred to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from cwm.domain.errors import (
    ExclusiveParametersError,
    InvalidParameterError,
    PreviousResponseNotFoundError,
    ResponseNotFoundError,
    StoredTooLargeError,
)
from cwm.domain.principal import Principal
from cwm.domain.response import (
    ContextLimit,
    Item,
    ItemPage,
    ItemQuery,
    LineEntry,
    ResponseAsk,
    StoredResponse,
    is_id,
)
from cwm.domain.weight import MOST_AT_ONCE
from cwm.ports.clock import Clock
from cwm.ports.responses import ResponseRecords
from cwm.ports.turn_wire import TurnRequest
from cwm.services.audit.journal import Journal
from cwm.services.responses.conversations import StoredConversations, unknown_after, weight_of_items

_PREVIOUS: Final = "previous_response_id"
_READ_TOGETHER: Final = MOST_AT_ONCE // 8
_MOST_TOGETHER: Final = 50
_LONGEST_ID: Final = 128


@dataclass(frozen=True, slots=True)
class Responses:
    """A principal's responses are its own: somebody else's are not there."""

    records: ResponseRecords
    conversations: StoredConversations
    clock: Clock
    journal: Journal
    limit: ContextLimit = field(default_factory=ContextLimit)

    async def resolved(self, principal: Principal, request: TurnRequest) -> tuple[TurnRequest, str | None]:
        """The request with all that it refers to, and the session of the response or the conversation that it goes on from.

        The conversation is held until it is let go. CWM-1004, 1005, 2008, 2009, 3010.
        """
        ask = request.response
        if ask is None or (ask.previous is None and ask.conversation is None and not ask.references):
            return request, None
        before: list[Item] = []
        session_id = None
        if ask.conversation is not None:
            if ask.previous is not None:
                raise ExclusiveParametersError(
                    "Mutually exclusive parameters. Ensure you are only providing one of: 'previous_response_id' or 'conversation'."
                )
            conversation, before = await self.conversations.hold(
                principal, ask.conversation, ask.id, ask.items
            )
            session_id = conversation.session_id
        elif ask.previous is not None:
            before, session_id = await self._before(principal, ask)
        references = [item_id for item_id in ask.references if is_id(item_id)]
        items_by_id: Mapping[str, Item] = {}
        if references:
            with self._bounded("input"):
                items_by_id = await self.records.items(
                    principal.tenant, principal.subject, references, self.limit.weight
                )
        for item_id in ask.references:
            if item_id not in items_by_id:
                raise ResponseNotFoundError(f"Item with id '{item_id[:128]}' not found.", field="input")
        return request.after(before, items_by_id), session_id

    async def _before(self, principal: Principal, ask: ResponseAsk) -> tuple[list[Item], str]:
        """What was said up to the previous response, and its session. Nothing is read of what is too large. CWM-1005, 2009."""
        line = await self._line(principal, ask.previous or "")
        own = await weight_of_items(ask.items)
        self.limit.require(own + sum(entry.weight for entry in line), _PREVIOUS)
        with self._bounded(_PREVIOUS):
            said = await self._in_line(principal, line, self.limit.weight)
        if not line or len(said) < len(line):
            raise PreviousResponseNotFoundError(
                f"Previous response with id '{(ask.previous or '')[:128]}' not found.", field=_PREVIOUS
            )
        before = [item for response in said for item in (*response.items, *response.output)]
        return before, line[-1].session_id

    @contextmanager
    def _bounded(self, field: str) -> Iterator[None]:
        """CWM-1005 for what is found to be too large when it is read: it is from before there were weights, or named by many ids."""
        try:
            yield
        except StoredTooLargeError:
            self.limit.require(self.limit.weight + 1, field)

    async def _in_line(
        self, principal: Principal, entries: Sequence[LineEntry], most: int = MOST_AT_ONCE
    ) -> list[StoredResponse]:
        ids = [entry.id for entry in entries]
        return await self.records.in_line(principal.tenant, principal.subject, ids, most) if ids else []

    async def keep(
        self,
        principal: Principal,
        ask: ResponseAsk,
        content: Mapping[str, Any],
        session_id: str | None,
        turn_id: str | None,
    ) -> None:
        """Keep a response with the turn that it was recorded as, if any, and add it to its conversation."""
        previous, items, conversation, is_kept = ask.previous, ask.items, None, False
        if ask.conversation is not None:
            whose = (principal.tenant, principal.subject, ask.conversation)
            conversation = await self.conversations.records.conversation(*whose)
            previous = None if conversation is None else conversation.last_response
            if previous is None:
                # The answer is there: what others added meanwhile is no reason to lose it.
                items = [*await self.conversations.records.items(*whose, 4 * self.limit.weight), *ask.items]
        if ask.stored and session_id is not None and turn_id is not None:
            is_kept = await self.records.keep(
                StoredResponse(
                    principal.tenant,
                    ask.id,
                    principal.subject,
                    session_id,
                    turn_id,
                    self.clock.now(),
                    items,
                    content,
                    previous,
                )
            )
        if conversation is None:
            return
        if content.get("status") != "failed":
            new_items = [*ask.items, *(content.get("output") or ())]
            await self.conversations.append(conversation, new_items, session_id, ask.id if is_kept else None)
        await self.conversations.let_go(principal, conversation.id, ask.id)

    async def response(self, principal: Principal, response_id: str) -> StoredResponse:
        """The response, without the items of its request. CWM-2008, 4006."""
        response = None
        if is_id(response_id):
            response = await self.records.response(principal.tenant, principal.subject, response_id)
        if response is None:
            raise _not_found(response_id)
        return response

    async def input_items(self, principal: Principal, response_id: str, query: ItemQuery) -> ItemPage:
        """Of all that the model was sent for the response. CWM-1003 for an unknown ``after``, CWM-2008, 4006.

        Responses are read some at a time, and of each only what is on the page is kept.
        """
        line = await self._line(principal, response_id)
        if not line:
            raise _not_found(response_id)
        items, weight, is_behind = list[Item](), 0, query.after is None
        for entries in _some_at_a_time(line[::-1] if query.descending else line):
            responses = await self._in_line(principal, entries)
            if len(responses) < len(entries):
                raise _not_found(response_id)
            for response, entry in zip(responses, entries, strict=True):
                if items and weight + entry.weight > MOST_AT_ONCE:
                    return ItemPage(items, has_more=True, weight=weight)
                said = [*response.items, *(response.output if entry is not line[-1] else ())]
                taken = len(items)
                for item in reversed(said) if query.descending else said:
                    if not is_behind:
                        is_behind = item.get("id") == query.after
                    elif len(items) == query.limit:
                        return ItemPage(items, has_more=True, weight=weight)
                    else:
                        items.append(item)
                weight += entry.weight if len(items) > taken else 0
        if not is_behind:
            raise unknown_after(query)
        return ItemPage(items, has_more=False, weight=weight)

    async def delete(self, principal: Principal, response_id: str) -> None:
        """Not found any more; what was said in it belongs to its session. CWM-2008."""
        async with self.journal.entry(principal, "response_delete") as details:
            details.update(response=response_id[:_LONGEST_ID])
            if not is_id(response_id) or not await self.records.hide(
                principal.tenant, principal.subject, response_id
            ):
                raise _not_found(response_id)

    async def _line(self, principal: Principal, response_id: str) -> list[LineEntry]:
        if not is_id(response_id):
            return []
        return await self.records.line(principal.tenant, principal.subject, response_id)

    async def cancel(self, principal: Principal, response_id: str) -> None:
        """CWM-1003: there is nothing to cancel, because no response is computed in the background. CWM-2008."""
        if not is_id(response_id) or not await self.records.is_found(
            principal.tenant, principal.subject, response_id
        ):
            raise _not_found(response_id)
        raise InvalidParameterError("Cannot cancel a synchronous response.", field="response_id")


def _some_at_a_time(line: Sequence[LineEntry]) -> Iterator[list[LineEntry]]:
    some, weight = list[LineEntry](), 0
    for entry in line:
        if some and (weight + entry.weight > _READ_TOGETHER or len(some) == _MOST_TOGETHER):
            yield some
            some, weight = [], 0
        some.append(entry)
        weight += entry.weight
    if some:
        yield some


def _not_found(response_id: str) -> ResponseNotFoundError:
    return ResponseNotFoundError(f"Response with id '{response_id[:128]}' not found.")
