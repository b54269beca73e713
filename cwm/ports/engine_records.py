"""The registry's record of engines: which sessions each serves, which moves hold a session, which engines are drained.

And which deployment of a model is the new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Protocol

from cwm.domain.prefix import TokenIds
from cwm.domain.session import Session
from cwm.domain.upgrade import Upgrade


class EngineRecords(Protocol):
    async def settle_session(self, session: Session, engine: str, instead_of: str | None) -> str | None:
        """Let ``engine`` serve a session that ``instead_of`` serves, or none yet: the engine that serves it now.

        Where that changes, no move holds the session any more. None when it is deleted, or not that session.
        """

    async def set_apart(self, session: Session, salt_scope: str, cache_salt: str) -> bool:
        """Let a session go on under a salt scope of its own, with its context under ``cache_salt``. False when it is deleted, or not that session."""

    async def note_proven(self, session: Session, token_ids: TokenIds) -> None:
        """Record that the KV which was loaded for these tokens of the session is right."""

    async def hold_session(
        self, session: Session, lease: timedelta, held_until: datetime | None = None
    ) -> datetime | None:
        """Hold a session for a move, or with ``held_until`` go on holding it: until when, by the database's clock.

        None while another move holds it, and when it is deleted, or not on the engine that ``session`` names.
        """

    async def release_session(self, session: Session, held_until: datetime) -> None:
        """End the hold that lasts until then."""

    async def served_sessions_of_every_tenant(self, engine: str, limit: int) -> list[Session]:
        """At most ``limit`` live sessions that an engine serves, those used the longest ago first."""

    async def served_sessions(self, tenant: str, engine: str, limit: int) -> list[Session]:
        """Those of one tenant."""

    async def session_counts(self, tenant: str) -> dict[str, int]:
        """How many live sessions of a tenant each engine serves; an engine without any is missing."""

    async def session_counts_of_every_tenant(self) -> dict[str, int]:
        """How many live sessions each engine serves; an engine without sessions is missing."""

    async def drain_engine(self, engine: str, at: datetime) -> None:
        """Record that an engine is being drained since then; an earlier time stays."""

    async def undo_drain(self, engine: str) -> None:
        """Record that an engine takes new sessions again."""

    async def drained_engines(self) -> Mapping[str, datetime]:
        """The engines that are being drained or have been, and since when."""

    async def begin_upgrade(self, upgrade: Upgrade) -> None:
        """Record to which deployment a model goes, in place of another one; for the same one the earlier time stays."""

    async def end_upgrade(self, model: str) -> None:
        """Record that no deployment of the model is the new one."""

    async def upgrades(self) -> Mapping[str, Upgrade]:
        """The upgrades of models, by model."""
