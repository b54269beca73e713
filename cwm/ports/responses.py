"""The durable record of responses. They are kept with their turns: where the turn is removed, so is the response.

Every method takes a tenant and an owner, and answers only about theirs. Errors are those of the registry: CWM-4001 (writing), CWM-4002
(reading), CWM-4004 for a damaged one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from cwm.domain.response import Item, StoredResponse


class ResponseRecords(Protocol):
    async def keep(self, response: StoredResponse) -> bool:
        """Keep a new response. False when its turn is not recorded any more."""

    async def response(self, tenant: str, owner: str, response_id: str) -> StoredResponse | None:
        """The response; None for a hidden one."""

    async def is_found(self, tenant: str, owner: str, response_id: str) -> bool:
        """Whether there is such a response that is not hidden. Reads nothing of it."""

    async def line(self, tenant: str, owner: str, response_id: str) -> list[StoredResponse]:
        """The response and those that it goes on from, hidden ones too, the first first.

        Empty if it is unknown or hidden itself, or one that it goes on from is gone.
        """

    async def items(self, tenant: str, owner: str, item_ids: Sequence[str]) -> Mapping[str, Item]:
        """Those of the items of kept answers that have these ids, by id."""

    async def of_owner(
        self, tenant: str, owner: str, after: str = "", limit: int = 100
    ) -> list[StoredResponse]:
        """Responses of the owner with ids behind ``after``, ordered by id, hidden ones too."""

    async def ids_of_owner(self, tenant: str, owner: str, after: str = "", limit: int = 100) -> list[str]:
        """The ids of these responses, damaged ones too."""

    async def hide(self, tenant: str, owner: str, response_id: str) -> bool:
        """Let the response not be found any more; what goes on from it stays readable. False when it was not found."""
