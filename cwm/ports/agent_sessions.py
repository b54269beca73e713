"""Agent sessions, shared by all replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from cwm.domain.principal import Principal


class AgentSessions(Protocol):
    """Which agent sessions exist, who owns them, and the state that a replica needs to continue one.

    An id is the ``Mcp-Session-Id`` of a client of 2025-11-25 or earlier, or a handle that a later client requested.
    State is stored by key: an id, or a key for a principal without an agent session. Ids and state are removed when
    idle for longer than the store's TTL. Every method raises StorageReadError or StorageWriteError when the store
    is unavailable.
    """

    @property
    def outlives_us(self) -> bool:
        """Whether the stored state survives the end of this process, so that another can continue with it."""

    async def begin(self, owner: Principal) -> str:
        """Create an agent session for ``owner`` and return its id."""

    async def touch(self, session_id: str, owner: Principal) -> bool:
        """Count a use of the id. False when it is unknown, ended, expired, or another principal's."""

    async def end(self, session_id: str) -> bool:
        """Remove the id and its state. False when it was unknown."""

    async def alive(self, key: str) -> bool:
        """Whether the id, or state under the key, still exists. Does not count as use."""

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
        """Store ``value`` under ``name`` and return the value stored now.

        An existing value is replaced only if it equals ``instead_of``. Returns None, and stores nothing, when the
        key no longer exists; a key that is not an id can be created with ``anew``. With ``leaves``, the key's state
        needs cleaning up after it expires: see :meth:`abandoned`.
        """

    async def recall(self, key: str) -> Mapping[str, str]:
        """All values stored for ``key``, by name; empty when there are none. Counts as use."""

    async def add(self, key: str, name: str, amount: int) -> int | None:
        """Atomically add ``amount`` to the counter ``name`` and return the new count. Counts as use.

        Returns None, and stores nothing, when neither the id nor state under the key exists any more.
        """

    async def forget(self, key: str, name: str) -> None: ...

    async def abandoned(self) -> Sequence[tuple[str, Mapping[str, str]]]:
        """Keys that expired with state to clean up, and that state by name.

        Each is returned once, to one gateway. Keys that were ended are never returned.
        """
