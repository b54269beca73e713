"""The rows of a large team's registry, which depend only on the number of its windows.

One tenant has nine tenths of everything, nine others share the rest. A fifth is private to others than who asks. A session has a hundred windows: four snapshots, each
frozen once and cloned 24 times. It has as many turns, each of which continues the one before. Models change over the years;
a few tags are on many windows and most on few.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

from cwm.adapters.sql.registry.sessions import head_of, standing
from cwm.adapters.sql.rows import session_values, turn_values, window_values
from cwm.adapters.sql.tables.sessions import sessions, snapshots
from cwm.adapters.sql.tables.turns import turn_contents, turns
from cwm.adapters.sql.tables.window_lists import window_search, window_terms
from cwm.adapters.sql.tables.windows import chunk_refs, windows
from cwm.adapters.sql.turns.packed import compress, pack_json
from cwm.adapters.sql.window_list.terms import search_values, term_values
from cwm.domain.engine import EngineIdentity, Tier
from cwm.domain.messages import message_of
from cwm.domain.prefix import digest
from cwm.domain.principal import OWNER
from cwm.domain.principal import TENANT as EVERYBODY
from cwm.domain.session import Session, SessionState
from cwm.domain.turn import Message, Turn, TurnState
from cwm.domain.window import Durability, Retention, Window

TENANT: Final = "default"
ASKER: Final = "local"
WINDOWS_A_SESSION: Final = 100

_CLONES: Final = 25
_BEGAN: Final = datetime(2024, 11, 1, tzinfo=UTC)
_YEARS: Final = timedelta(days=730)
_TURN_TOKENS: Final = 5
_CHUNK_TOKENS: Final = 256
_CHUNK_BYTES: Final = 9_437_184
_LENGTHS: Final = (512, 512, 768, 1024, 1024, 2048, 4096)
_MODELS: Final = ("llama-3.1-8b", "qwen2.5-14b", "llama-3.3-70b", "qwen3-32b", "gpt-oss-120b")
_PROJECTS: Final = ("billing", "search", "checkout", "identity", "ledger", "mobile", "infra", "support")
_TASKS: Final = ("refactor", "incident", "migration", "audit", "spike", "upgrade", "cleanup", "onboarding")
_NOUNS: Final = ("tokens", "queries", "invoices", "retries", "schemas", "sessions", "reports", "webhooks")
_COMMON: Final = ("coding", "review", "research", "draft")
_RARE_TAGS: Final = 2_000


@dataclass(slots=True)
class Batch:
    """Rows by table, in an order in which they can be written."""

    rows: dict[Any, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, table: Any, *rows: dict[str, Any]) -> None:
        self.rows.setdefault(table, []).extend(rows)


def batches(count: int, a_session: int = WINDOWS_A_SESSION) -> Iterator[Batch]:
    """``count`` windows, ``a_session`` of each session, in batches of whole sessions."""
    number = 0
    session = 0
    while number < count:
        batch = Batch()
        for _ in range(50):
            if number >= count:
                break
            _add_session(batch, session, number, min(a_session, count - number), count)
            number += a_session
            session += 1
        yield batch


def tenant_of(session: int) -> str:
    return TENANT if session % 10 else f"tenant-{session // 10 % 9}"


def owner_of(session: int) -> str:
    """Who made a session and its windows: mostly the principal of a gateway without authentication."""
    return f"agent-{session % 97}" if session % 10 in {2, 3} else ASKER


def is_private(session: int) -> bool:
    """Whether only its owner sees it: all of others, a twentieth of the asker's."""
    return owner_of(session) != ASKER or session % 20 == 4


def name_of(number: int) -> str:
    """The name of the ``number``-th window."""
    project, task = _PROJECTS[number // 25 % 8], _TASKS[number // 200 % 8]
    return f"{project}-{task}-{number:07d}"


def session_id_of(session: int) -> str:
    return f"session-{session:06d}"


def turn_id_of(session: int, number: int) -> str:
    """The id of the ``number``-th turn of a session, from 1 on."""
    return f"turn_{session:024x}{number:08x}"


def made_at(number: int, count: int) -> datetime:
    return _BEGAN + _YEARS * (number / count)


def _add_session(batch: Batch, session: int, first: int, size: int, count: int) -> None:
    tenant, chance = tenant_of(session), random.Random(session)  # noqa: S311 - nothing is guarded by it
    at = made_at(first, count)
    record = Session(
        tenant=tenant,
        id=session_id_of(session),
        owner=owner_of(session),
        model=_model(first / count, chance),
        state=_state(chance),
        salt_scope=f"tenant:{tenant}",
        token_count=_LENGTHS[session % len(_LENGTHS)],
        revision=chance.randrange(1, 40),
        created_at=at,
        updated_at=at + timedelta(minutes=chance.randrange(1, 600)),
        frozen_at=at,
        circle=f"{OWNER}{owner_of(session)}" if is_private(session) else EVERYBODY,
    )
    rows = list(_turns(record, session, size))
    batch.add(sessions, session_values(record) | standing(rows[-1]) | {"thawed_from_uid": None})
    batch.add(turns, *rows)
    keys = {"tenant": tenant, "session_id": record.id}
    batch.add(
        turn_contents, *(keys | {"digest": each.digest, "packed": packed} for each, packed in _said(size))
    )
    for start in range(first, first + size, _CLONES):
        _add_clones(batch, record, start, min(_CLONES, first + size - start), count, chance)


def _turns(session: Session, number: int, count: int) -> Iterator[dict[str, Any]]:
    """The rows of ``count`` turns that end at the session's size: of a question and an answer each."""
    every = _ids(number, session.token_count)
    first = len(every) - (count - 1) * _TURN_TOKENS
    parent, parent_at = None, 0
    for turn_number in range(1, count + 1):
        total = first + (turn_number - 1) * _TURN_TOKENS
        packed, _ = compress(every[parent_at:total])
        turn = Turn(
            tenant=session.tenant,
            session_id=session.id,
            id=turn_id_of(number, turn_number),
            author=session.owner,
            asked_at=session.updated_at,
            ended_at=session.updated_at,
            number=turn_number,
            state=TurnState.ENDED,
            parent=parent,
            parent_at=parent_at,
            parent_messages=2 * (turn_number - 1),
            prompt_tokens=total - 1,
            total_tokens=total,
            prompt_digest=digest(every[: total - 1]),
            digest=digest(every[:total]),
            continues=parent is not None,
            main=True,
        )
        digests = [each.digest for each, _ in _said(count)[2 * turn_number - 2 : 2 * turn_number]]
        yield turn_values(turn) | {"head": head_of(every), "packed": packed, "messages": digests}
        parent, parent_at = turn.id, total


@cache
def _said(turn_count: int) -> list[tuple[Message, bytes]]:
    """The messages of that many turns, the same in every session, and their stored form."""
    texts = (f"{number}: {' '.join(_TASKS * 4)}" for number in range(2 * turn_count))
    messages = (
        message_of({"role": ("user", "assistant")[at % 2], "content": text}) for at, text in enumerate(texts)
    )
    return [(message, pack_json(message.content).stored) for message in messages]


def _add_clones(
    batch: Batch, session: Session, first: int, size: int, count: int, chance: random.Random
) -> None:
    length = chance.choice(_LENGTHS)
    packed, digest = compress(_ids(first, length))
    tenant = session.tenant
    batch.add(snapshots, {"tenant": tenant, "id": digest, "token_count": length, "packed": packed})
    for number in range(first, first + size):
        source = None if number == first else name_of(first)
        window = _window(number, session, digest, length, source, made_at(number, count), chance)
        values = {
            "uid": f"{number:032x}",
            "parent_uid": None if source is None else f"{first:032x}",
        }
        batch.add(windows, window_values(window) | values)
        batch.add(window_search, {"id": number + 1, **search_values(window)})
        batch.add(window_terms, *term_values(window))
    batch.add(
        chunk_refs,
        *(
            {
                "tenant": tenant,
                "window_name": name_of(first),
                "position": position,
                "hash": f"{first:032x}{position:032x}",
                "size_bytes": _CHUNK_BYTES,
                "cache_salt": f"cwm1-{tenant}",
                "root": _identity(session.model).root,
            }
            for position in range(length // _CHUNK_TOKENS)
        ),
    )


def _window(
    number: int,
    session: Session,
    snapshot_id: str,
    length: int,
    source: str | None,
    at: datetime,
    chance: random.Random,
) -> Window:
    failed, chunks = chance.random() < 0.02, length // _CHUNK_TOKENS
    project, task = _PROJECTS[number // 25 % 8], _TASKS[number // 200 % 8]
    return Window(
        tenant=session.tenant,
        name=name_of(number),
        session_id=session.id,
        owner=session.owner,
        snapshot_id=snapshot_id,
        model=session.model,
        token_count=length,
        block_count=chunks,
        total_size_bytes=chunks * _CHUNK_BYTES + number % 4096,
        storage_tier=Tier.REDIS if number % 3 else Tier.DISK,
        durability=Durability.FAILED if failed else Durability.DURABLE,
        salt_scope=session.salt_scope,
        cache_salt=f"cwm1-{session.tenant}",
        identity=_identity(session.model),
        created_at=at,
        updated_at=at + timedelta(seconds=3),
        description=f"{task} of the {project} {_NOUNS[chance.randrange(8)]}, branch {number % 25} of ticket {number // 25}",
        tags=_tags(project, chance),
        parent_window=source,
        branch_token=None if source is None else length,
        pinned=not failed,
        failure="chunks could not be stored" if failed else None,
        tiers={} if failed else {"redis": chunks},
        retention=Retention.BEST_EFFORT if chance.random() < 0.2 else Retention.GUARANTEED,
        expires_at=_BEGAN + 2 * _YEARS if chance.random() < 0.1 else None,
        proven_at=None if failed else at,
        circle=session.circle,
    )


def _tags(project: str, chance: random.Random) -> tuple[str, ...]:
    common = [
        tag for tag, share in zip(_COMMON, (0.3, 0.12, 0.05, 0.01), strict=True) if chance.random() < share
    ]
    rare = f"topic-{int(_RARE_TAGS * chance.random() ** 2)}"
    return (project, *common, rare)


def _model(share: float, chance: random.Random) -> str:
    """The model of that time, or sometimes the next."""
    at = int(share * len(_MODELS)) + (chance.random() < 0.15)
    return _MODELS[min(at, len(_MODELS) - 1)]


def _state(chance: random.Random) -> SessionState:
    states = (SessionState.FROZEN, SessionState.ACTIVE, SessionState.THAWED, SessionState.EXPIRED)
    return chance.choices(states, (55, 25, 15, 5))[0]


def _ids(seed: int, length: int) -> tuple[int, ...]:
    return tuple(range(seed, seed + length))


@cache
def _identity(model: str) -> EngineIdentity:
    return EngineIdentity(
        model=model,
        root=f"/models/{model}",
        fingerprint="fp-1",
        max_model_len=131_072,
        vllm_version="0.32.0",
        chunk_size=_CHUNK_TOKENS,
        block_size=_CHUNK_TOKENS,
        hash_algorithm="blake3",
    )
