"""The columns of a turn that tell what was said, as they are stored: with a vault that seals, its digests together in ``digest``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from cwm.adapters.sql.vault import Vault, is_sealed_text
from cwm.domain.turn import Profile, Turn

_DIGESTS: Final = ("system", "tools", "prompt_digest", "digest", "chain", "old_message", "new_message")
_KEYS: Final = ("calls", "core_chain")
"""Answers are looked for by these: with a vault the columns have their names, and they themselves are in ``sealed_keys``."""


def sealed_turn(vault: Vault, row: dict[str, Any]) -> dict[str, Any]:
    """The row of a turn with its columns ``packed``, ``title``, ``messages`` and ``head``, if it has them, and its digests sealed."""
    if not vault:
        return row
    key = (row["tenant"], row["id"])
    digests = json.dumps([row[name] for name in _DIGESTS])
    sealed: dict[str, Any] = dict.fromkeys(_DIGESTS, "")
    sealed["digest"] = vault.seal_text(digests, "digests", *key)
    # Read as they are: no row has them twice. Sessions are looked for by the chain.
    sealed["old_message"] = sealed["new_message"] = None
    sealed["chain"] = row["chain"] and vault.name(row["tenant"], row["chain"])
    keys = {name: row.get(name) for name in _KEYS}
    if any(keys.values()):
        sealed["sealed_keys"] = vault.seal_text(json.dumps(keys), "keys", *key)
    for name, digest in keys.items():
        sealed[name] = digest and vault.name(row["tenant"], digest)
    if row.get("packed"):
        sealed["packed"] = vault.seal(row["packed"], "tokens", *key)
    if row.get("title"):
        sealed["title"] = vault.seal(row["title"], "title", *key)
    if row.get("messages"):
        sealed["messages"] = vault.seal_text(json.dumps(row["messages"]), "messages", *key)
    if row.get("head"):
        sealed["head"] = vault.name(row["tenant"], row["head"])
    return row | sealed


def opened_turn(vault: Vault, turn: Turn) -> Turn:
    """The turn of a row. CWM-4004, CWM-4005."""
    if not is_sealed_text(turn.digest):
        return turn
    opened = dict(zip(_DIGESTS, _opened(vault, turn.tenant, turn.id, turn.digest), strict=True))
    return replace(turn, profile=Profile(opened.pop("system"), opened.pop("tools")), **opened)


def keys_in(vault: Vault, row: Any) -> dict[str, str | None]:
    """The digests by which the answer of a turn is looked for. The row has the columns of a turn and ``sealed_keys``."""
    if row.sealed_keys is None:
        return {name: getattr(row, name) for name in _KEYS}
    opened: dict[str, str | None] = json.loads(vault.open_text(row.sealed_keys, "keys", row.tenant, row.id))
    return opened


def digest_in(vault: Vault, tenant: str, turn_id: str, stored: str) -> str:
    """The digest of a turn's token ids, from its column ``digest``."""
    if not is_sealed_text(stored):
        return stored
    return str(_opened(vault, tenant, turn_id, stored)[_DIGESTS.index("digest")])


def messages_in(vault: Vault, tenant: str, turn_id: str, stored: Sequence[str] | str) -> list[str]:
    """The digests of a turn's messages, from its column ``messages``."""
    if isinstance(stored, str):
        stored = json.loads(vault.open_text(stored, "messages", tenant, turn_id))
    return list(stored)


def _opened(vault: Vault, tenant: str, turn_id: str, stored: str) -> list[Any]:
    digests: list[Any] = json.loads(vault.open_text(stored, "digests", tenant, turn_id))
    return digests
