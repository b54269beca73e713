"""Agent sessions as every replica knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from cwm.domain.principal import Principal


class AgentSessions(Protocol):
    """Which agent sessions exist, whose they are, and what a replica needs to go on with one.

    An id is an ``Mcp-Session-Id`` of a client of 2025-11-25 and earlier, or the handle that a later client
    asked for. State is kept by key: an id, or a key that stands for a principal without one. Both are
    forgotten when idle for longer than the store's TTL. Every method raises StorageReadError or
    StorageWriteError when the store is away.
    """

    @property
    def outlives_us(self) -> bool:
        """Whether what is kept can be gone on with when this process has ended."""

    async def begin(self, owner: Principal) -> str:
        """A new id."""

    async def touch(self, session_id: str, owner: Principal) -> bool:
        """Use an id. False when it is unknown, ended, idle for too long, or another principal's."""

    async def end(self, session_id: str) -> bool:
        """Forget the id and its state. False when it was not known."""

    async def alive(self, key: str) -> bool:
        """Whether the id, or state under the key, is still kept. Does not count as use."""

    async def remember(
        self,
        key: str,
        name: str,
        value: str,
        *,
        instead_of: str | None = None,
        anew: bool = False,
        leaves: bool = False,
    ) -> str | None:
        """Keep ``value`` under ``name`` unless another than ``instead_of`` is kept already; what is kept now.

        None, and nothing is kept, for what is not kept any more; a key that is no id may begin ``anew``. It
        ``leaves`` what somebody has to see to when it has expired: see :meth:`abandoned`.
        """

    async def recall(self, key: str) -> Mapping[str, str]:
        """All that is kept for ``key``, by name; empty when nothing is. Counts as use."""

    async def add(self, key: str, name: str, amount: int) -> int | None:
        """Add to the count kept under ``name``, at once for every replica; the new count. Counts as use.

        None, and nothing is kept, when neither the id nor state under the key is kept any more.
        """

    async def forget(self, key: str, name: str) -> None: ...

    async def abandoned(self) -> Sequence[tuple[str, Mapping[str, str]]]:
        """Keys that expired, and what they left by name. Each is given once, to one gateway; one that ended never."""
