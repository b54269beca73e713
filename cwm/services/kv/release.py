"""Release: unpin and delete in LMCache what a removed window or session still has there."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from cwm.domain.errors import CwmError, StorageCorruptionError
from cwm.domain.intent import Debt, Intent
from cwm.domain.prefix import TokenIds
from cwm.ports.kv_tier import KvTier, PrefixKey
from cwm.ports.registry import Registry
from cwm.services.aside import to_its_end
from cwm.services.kv.prefix import Prefix
from cwm.services.replicas import Replicas


def debt_of(prefix: Prefix, *, pinned: bool, hashes: tuple[str, ...] = ()) -> Debt:
    identity = prefix.identity
    return Debt(
        identity.root,
        identity.world_size,
        identity.stored_chunk or 1,
        len(prefix.key.token_ids),
        pinned,
        hashes,
    )


@dataclass(frozen=True, slots=True)
class Release:
    registry: Registry
    kv_tier: KvTier
    replicas: Replicas

    async def __call__(self, intent: Intent | None, *, unpin: bool = True) -> bool:
        """Unpin and delete now. If that fails, leave it to the next reconciliation and return False.

        Without ``unpin`` the caller corrects the pins.
        """
        if intent is None:
            return True
        try:
            await self._pay(intent, unpin=unpin)
        except CwmError:
            await self.leave(intent)
            return False
        except BaseException:
            await self.leave(intent)
            raise
        return True

    async def leave(self, intent: Intent | None) -> None:
        """Leave it to the next reconciliation, which compares all pins and so knows whether this one was taken."""
        if intent is not None:
            self.replicas.let_go(intent)
            with suppress(CwmError):
                await to_its_end(self.registry.hand_over(intent.tenant, intent.id))

    async def token_ids(self, intent: Intent) -> TokenIds | None:
        """The token ids of the debt; None if no undamaged copy is left."""
        if intent.debt is None or intent.snapshot_id is None:
            return None
        try:
            snapshot = await self.registry.snapshot(intent.tenant, intent.snapshot_id)
        except StorageCorruptionError:
            return None
        return snapshot.token_ids[: intent.debt.token_count]

    async def _pay(self, intent: Intent, *, unpin: bool) -> None:
        debt = intent.debt
        if debt is not None:
            key = PrefixKey(debt.root, debt.world_size, (), intent.cache_salt)
            if unpin and debt.pinned and (token_ids := await self.token_ids(intent)) is not None:
                await self.kv_tier.unpin(PrefixKey(debt.root, debt.world_size, token_ids, intent.cache_salt))
            unused = await self.registry.unreferenced(intent.tenant, intent.cache_salt, debt.hashes)
            await self.kv_tier.delete(key, unused)
        await self.registry.end_intent(intent.tenant, intent.id)
