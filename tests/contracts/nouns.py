"""Complete sessions, turns and windows, of which a test names only what it is about."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias
from uuid import uuid4

from cwm.domain.engine import EngineIdentity, Tier
from cwm.domain.intent import Debt, Intent, Operation
from cwm.domain.prefix import TokenIds, digest
from cwm.domain.session import Session, SessionState
from cwm.domain.turn import Message, Turn, TurnParts
from cwm.domain.window import Chunk, Durability, Window
from cwm.ports.registry import Registry, StoredChunks

Damage: TypeAlias = Callable[..., Awaitable[None]]

NOW: Final = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)
LATER: Final = NOW + timedelta(minutes=5)
IDS: Final = tuple(range(1000, 1070))

IDENTITY: Final = EngineIdentity(
    model="tiny",
    root="/models/tiny",
    fingerprint="fp-1",
    max_model_len=8192,
    vllm_version="0.32.0",
    chunk_size=32,
    block_size=32,
    hash_algorithm="blake3",
    lmcache_version="0.5.6",
    weights_digest="sha256:00",
    kv_dtype="auto",
    tokenizer_digest="01",
    template_digest="01",
)


def a_session(session_id: str = "s1", tenant: str = "acme", **given: Any) -> Session:
    session = Session(
        tenant=tenant,
        id=session_id,
        owner="ann",
        model="tiny",
        state=SessionState.ACTIVE,
        salt_scope=tenant,
        token_count=len(IDS),
        revision=0,
        created_at=NOW,
        updated_at=NOW,
    )
    return replace(session, **given)


def a_window(name: str = "w1", tenant: str = "acme", **given: Any) -> Window:
    window = Window(
        tenant=tenant,
        name=name,
        session_id="s1",
        owner="ann",
        snapshot_id=digest(IDS),
        model="tiny",
        token_count=len(IDS),
        block_count=0,
        total_size_bytes=0,
        storage_tier=Tier.DISK,
        durability=Durability.PENDING,
        salt_scope=tenant,
        cache_salt=f"salt-of-{tenant}",
        identity=IDENTITY,
        created_at=NOW,
        updated_at=NOW,
    )
    return replace(window, **given)


def stored(*hashes: str, size_bytes: int = 100, tier: Tier = Tier.REDIS) -> StoredChunks:
    chunks = tuple(Chunk(chunk, size_bytes) for chunk in hashes)
    return StoredChunks(chunks, tier, {tier.value: len(chunks)})


def a_turn(turn_id: str = "t1", session_id: str = "s1", tenant: str = "acme", **fields: Any) -> Turn:
    turn = Turn(tenant=tenant, session_id=session_id, id=turn_id, author="ann", asked_at=NOW)
    return replace(turn, **fields)


async def recorded(
    registry: Registry,
    tenant: str,
    session_id: str,
    token_ids: Sequence[int],
    at: datetime,
    metadata: Mapping[str, Any] | None = None,
    revision: int | None = None,
    created_at: datetime | None = None,
) -> Session | None:
    """The session after a main turn with these ids and no parent; None if the turn is not recorded."""
    session = await registry.session(tenant, session_id, any_state=True)
    if session is None:
        return None
    turn = a_turn(uuid4().hex, session_id, tenant, asked_at=at)
    asked = await registry.begin_turn(turn, created_at or session.created_at)
    if asked is None:
        return None
    count, content = len(token_ids), digest(token_ids)
    ended = replace(
        asked,
        prompt_tokens=count,
        total_tokens=count,
        prompt_digest=content,
        digest=content,
        main=True,
        ended_at=at,
    )
    return await registry.end_turn(ended, TurnParts(tuple(token_ids)), metadata, revision)


async def freeze(
    registry: Registry,
    name: str,
    *hashes: str,
    tenant: str = "acme",
    ids: tuple[int, ...] = IDS,
    **given: Any,
) -> Window:
    """A durable window of a session of its own, named after it, of the same owner in the same circle."""
    session_id = f"of-{name}"
    whose = {field: given[field] for field in ("owner", "circle") if field in given}
    await registry.add_session(a_session(session_id, tenant, token_count=len(ids), **whose), ids)
    window = a_window(
        name, tenant, session_id=session_id, snapshot_id=digest(ids), token_count=len(ids), **given
    )
    await registry.begin_freeze(window, ids, 0)
    return await registry.finish_freeze(window, stored(*hashes), LATER)


async def clone(registry: Registry, source: Window, name: str, **given: Any) -> Window:
    copy = replace(
        source, name=name, parent_window=source.name, branch_token=source.token_count, pinned=False
    )
    added, intent = await registry.add_clone(replace(copy, **given), source.name)
    await registry.end_intent(intent.tenant, intent.id)
    return added


async def remove(
    registry: Registry, name: str, debt: Debt | None = None, *, tenant: str = "acme"
) -> Intent | None:
    """As it is now."""
    window = await registry.window(tenant, name)
    return await registry.remove_window(window or a_window(name, tenant), LATER, debt)


async def being_frozen(registry: Registry) -> list[str]:
    """Names of the windows that somebody is at, the oldest first."""
    intents = await registry.intents_of_every_tenant()
    return [intent.window_name for intent in intents if intent.operation is Operation.FREEZE]


async def ask_turn(registry: Registry, turn_id: str = "t1", **fields: Any) -> Turn:
    """A turn that is in flight."""
    turn = await registry.begin_turn(a_turn(turn_id, **fields), NOW)
    assert turn is not None
    return turn


async def end_turn(
    registry: Registry,
    turn: Turn,
    context: TokenIds,
    parent: Turn | None = None,
    at: int = 0,
    *,
    messages: list[Message] | None = None,
    revision: int | None = None,
    **fields: Any,
) -> Session | None:
    """End a turn whose context leaves that of ``parent`` at the token ``at``; None if it was forgotten."""
    ended = replace(
        turn,
        parent=None if parent is None else parent.id,
        parent_at=at,
        prompt_tokens=len(context),
        total_tokens=len(context),
        prompt_digest=digest(context),
        digest=digest(context),
        **{"main": True, "ended_at": LATER, **fields},
    )
    return await registry.end_turn(ended, TurnParts(context[at:], tuple(messages or ())), None, revision)
