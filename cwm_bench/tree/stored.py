"""What a conversation takes up: its rows in the registry, and its KV in the lower tiers."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from cwm.adapters.sql.turns.packed import compress, pack_json

_STORED = """
SELECT (SELECT coalesce(sum(length(packed)), 0) FROM turns WHERE session_id = :session)
     + (SELECT coalesce(sum(length(packed)), 0) FROM turn_contents WHERE session_id = :session)
"""


def tree_bytes(registry: Path, session_id: str) -> int:
    """The compressed tokens and messages of all turns of a session, in the SQLite file ``registry``."""
    with closing(sqlite3.connect(f"file:{registry}?mode=ro", uri=True)) as connection:
        return int(connection.execute(_STORED, {"session": session_id}).fetchone()[0])


def context_bytes(token_ids: Sequence[int], messages: Sequence[dict[str, Any]]) -> int:
    """One context alone, compressed as the registry compresses: its tokens in one piece, and its messages."""
    return len(compress(token_ids)[0]) + sum(len(pack_json(message).stored) for message in messages)


async def kv_bytes(redis: Redis, folder: Path) -> int:
    """Sealed chunks in Redis and on disk; one that both have counts twice."""
    in_redis = 0
    async for key in redis.scan_iter(count=1000):
        in_redis += await redis.strlen(key)
    on_disk = await asyncio.to_thread(lambda: sum(path.stat().st_size for path in folder.glob("*.data")))
    return in_redis + on_disk
