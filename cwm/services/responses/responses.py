"""Responses: what a request refers to, and what is kept to be referred to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cwm.domain.errors import InvalidParameterError, PreviousResponseNotFoundError, ResponseNotFoundError
from cwm.domain.principal import Principal
from cwm.domain.response import Item, ResponseAsk, StoredResponse
from cwm.ports.clock import Clock
from cwm.ports.responses import ResponseRecords
from cwm.ports.turn_wire import TurnRequest

# What a database cannot look for is not there.
_ID: Final = re.compile(r"[\w-]{1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Responses:
    """A principal's responses are its own: somebody else's are not there."""

    records: ResponseRecords
    clock: Clock

    async def resolved(self, principal: Principal, request: TurnRequest) -> tuple[TurnRequest, str | None]:
        """The request with all that it refers to, and the session of the response that it goes on from. CWM-2008, 2009."""
        ask = request.response
        if ask is None or (ask.previous is None and not ask.references):
            return request, None
        before: list[Item] = []
        session_id = None
        if ask.previous is not None:
            line = await self._line(principal, ask.previous)
            if not line:
                raise PreviousResponseNotFoundError(
                    f"Previous response with id '{ask.previous[:128]}' not found.",
                    field="previous_response_id",
                )
            before = [item for response in line for item in (*response.items, *response.output)]
            session_id = line[-1].session_id
        asked = [item_id for item_id in ask.references if _ID.fullmatch(item_id)]
        known = await self.records.items(principal.tenant, principal.subject, asked)
        for item_id in ask.references:
            if item_id not in known:
                raise ResponseNotFoundError(f"Item with id '{item_id[:128]}' not found.", field="input")
        return request.after(before, known), session_id

    async def keep(
        self,
        principal: Principal,
        ask: ResponseAsk,
        content: Mapping[str, Any],
        session_id: str,
        turn_id: str,
    ) -> None:
        """Keep a response with the turn that it was recorded as."""
        await self.records.keep(
            StoredResponse(
                principal.tenant,
                ask.id,
                principal.subject,
                session_id,
                turn_id,
                self.clock.now(),
                ask.items,
                content,
                ask.previous,
            )
        )

    async def response(self, principal: Principal, response_id: str) -> StoredResponse:
        """CWM-2008."""
        response = None
        if _ID.fullmatch(response_id):
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
        if not _ID.fullmatch(response_id) or not await self.records.hide(
            principal.tenant, principal.subject, response_id
        ):
            raise _not_found(response_id)

    async def _line(self, principal: Principal, response_id: str) -> list[StoredResponse]:
        if not _ID.fullmatch(response_id):
            return []
        return await self.records.line(principal.tenant, principal.subject, response_id)

    async def cancel(self, principal: Principal, response_id: str) -> None:
        """CWM-1003: there is nothing to cancel, because no response is computed in the background. CWM-2008."""
        await self.response(principal, response_id)
        raise InvalidParameterError("Cannot cancel a synchronous response.", field="response_id")


def _not_found(response_id: str) -> ResponseNotFoundError:
    return ResponseNotFoundError(f"Response with id '{response_id[:128]}' not found.")
