"""The durable record of responses. They are kept with their turns: where the turn is removed, so is the response.

Every method takes a tenant and an owner, and answers only about theirs. Errors are those of the registry: CWM-4001 (writing), CWM-4002
(reading), CWM-4004 for a damaged one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from cwm.domain.response import Item, LineEntry, StoredResponse
from cwm.domain.weight import MOST_AT_ONCE


class ResponseRecords(Protocol):
    async def keep(self, response: StoredResponse) -> bool:
        """Keep a new response. False when its turn is not recorded any more."""

    async def response(self, tenant: str, owner: str, response_id: str) -> StoredResponse | None:
        """The response, without the items of its request; None for a hidden one. CWM-4006 if it is too large to be read."""

    async def is_found(self, tenant: str, owner: str, response_id: str) -> bool:
        """Whether there is such a response that is not hidden. Reads nothing of it."""

    async def line(self, tenant: str, owner: str, response_id: str) -> list[LineEntry]:
        """The response and those that it goes on from, hidden ones too, the first first, each with what it weighs.

        Empty if it is unknown or hidden itself, or one that it goes on from is gone.
        """

    async def in_line(
        self, tenant: str, owner: str, response_ids: Sequence[str], most: int = MOST_AT_ONCE
    ) -> list[StoredResponse]:
        """Responses of a line, hidden ones too, in this order and without those that are gone. CWM-4006 if they weigh more than ``most`` together."""

    async def items(
        self, tenant: str, owner: str, item_ids: Sequence[str], most: int = MOST_AT_ONCE
    ) -> Mapping[str, Item]:
        """Those of the items of kept answers that have these ids, by id. CWM-4006 if those answers weigh more than ``most`` together."""

    async def ids_of_owner(self, tenant: str, owner: str, after: str = "", limit: int = 100) -> list[str]:
        """The ids of responses of the owner behind ``after``, in their order, those of hidden and damaged ones too."""

    async def hide(self, tenant: str, owner: str, response_id: str) -> bool:
        """Let the response not be found any more; what goes on from it stays readable. False when it was not found."""
