"""Responses: what a request refers to, and what is kept to be referred to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cwm.domain.errors import (
    ExclusiveParametersError,
    InvalidParameterError,
    PreviousResponseNotFoundError,
    ResponseNotFoundError,
)
from cwm.domain.principal import Principal
from cwm.domain.response import Item, ResponseAsk, StoredResponse, is_id
from cwm.ports.clock import Clock
from cwm.ports.responses import ResponseRecords
from cwm.ports.turn_wire import TurnRequest
from cwm.services.audit.journal import Journal
from cwm.services.responses.conversations import StoredConversations

_LONGEST_ID: Final = 128


@dataclass(frozen=True, slots=True)
class Responses:
    """A principal's responses are its own: somebody else's are not there."""

    records: ResponseRecords
    conversations: StoredConversations
    clock: Clock
    journal: Journal

    async def resolved(self, principal: Principal, request: TurnRequest) -> tuple[TurnRequest, str | None]:
        """The request with all that it refers to, and the session of the response or the conversation that it goes on from.

        The conversation is held until it is let go. CWM-1004, 2008, 2009, 3010.
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
            line = await self._line(principal, ask.previous)
            if not line:
                raise PreviousResponseNotFoundError(
                    f"Previous response with id '{ask.previous[:128]}' not found.",
                    field="previous_response_id",
                )
            before = [item for response in line for item in (*response.items, *response.output)]
            session_id = line[-1].session_id
        references = [item_id for item_id in ask.references if is_id(item_id)]
        items_by_id = await self.records.items(principal.tenant, principal.subject, references)
        for item_id in ask.references:
            if item_id not in items_by_id:
                raise ResponseNotFoundError(f"Item with id '{item_id[:128]}' not found.", field="input")
        return request.after(before, items_by_id), session_id

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
                items = [*await self.conversations.records.items(*whose), *ask.items]
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
        """CWM-2008."""
        response = None
        if is_id(response_id):
            response = await self.records.response(principal.tenant, principal.subject, response_id)
        if response is None:
            raise _not_found(response_id)
        return response

    async def input_items(self, principal: Principal, response_id: str) -> Sequence[Item]:
        """All that the model was sent for the response, the first first. CWM-2008."""
        line = await self._line(principal, response_id)
        if not line:
            raise _not_found(response_id)
        before = [item for response in line[:-1] for item in (*response.items, *response.output)]
        return [*before, *line[-1].items]

    async def delete(self, principal: Principal, response_id: str) -> None:
        """Not found any more; what was said in it belongs to its session. CWM-2008."""
        async with self.journal.entry(principal, "response_delete") as details:
            details.update(response=response_id[:_LONGEST_ID])
            if not is_id(response_id) or not await self.records.hide(
                principal.tenant, principal.subject, response_id
            ):
                raise _not_found(response_id)

    async def _line(self, principal: Principal, response_id: str) -> list[StoredResponse]:
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


def _not_found(response_id: str) -> ResponseNotFoundError:
    return ResponseNotFoundError(f"Response with id '{response_id[:128]}' not found.")
