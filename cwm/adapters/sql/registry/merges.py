"""Merging: the turns of one session become turns of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from heapq import merge
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, literal, select, update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.branches import at_rest
from cwm.adapters.sql.registry.sessions import find_session
from cwm.adapters.sql.rows import SESSION, TURN, insert_into, session_of, turn_of, turn_values
from cwm.adapters.sql.tables import metadata
from cwm.adapters.sql.tables.responses import conversations
from cwm.adapters.sql.tables.sessions import sessions
from cwm.adapters.sql.tables.turns import turn_contents, turn_tags, turns
from cwm.adapters.sql.tables.windows import windows
from cwm.adapters.sql.transactions import writing
from cwm.adapters.sql.turns.packed import Delta, compress, join
from cwm.adapters.sql.turns.paths import digests_of, tokens_of
from cwm.adapters.sql.turns.sealed import opened_turn, sealed_turn
from cwm.adapters.sql.turns.stored_bytes import count_again
from cwm.adapters.sql.vault import Vault
from cwm.domain.errors import StorageReadError
from cwm.domain.prefix import TokenIds, common_length
from cwm.domain.session import FOUND_BY, LIVE, Session, SessionState
from cwm.domain.turn import Turn
from cwm.domain.window import Durability

_MEANT: Final = ("created_at", "model", "salt_scope", "owner", "circle")
_REPLACED: Final = ("parent", "parent_at", "parent_messages", "continues", "messages", "packed")
_OF_TURNS: Final = tuple(
    table for table in metadata.sorted_tables if {"session_id", "turn_id"} <= set(table.c.keys())
)
"""Tables whose rows belong to a turn and its session."""
_MOVED: Final = (
    update(turns)
    .where(turns.c.tenant == bindparam("of_tenant"), turns.c.id == bindparam("of_turn"))
    .values(session_id=bindparam("to_session"), number=bindparam("to_number"))
)


class MergeRecords:
    database: Database
    vault: Vault

    @writing
    def merge_sessions(
        self, connection: Connection, source: Session, target: Session, at: datetime
    ) -> Session | None:
        tenant = source.tenant
        currents = _locked(connection, source, target)
        was, now = _now(connection, source), _now(connection, target)
        if was is None or now is None or now.state not in LIVE:
            return None
        mine, theirs = (_turns(connection, self.vault, tenant, each.id) for each in (target, source))
        # Clocks of gateways differ: in its session a turn stays behind those that were asked before it.
        order = list(merge(mine, theirs, key=lambda turn: turn.asked_at))
        for root in [turn for turn in order if turn.parent is None]:
            earlier = order[: order.index(root)]
            _attach(
                connection, self.vault, root, [each for each in earlier if each.session_id != root.session_id]
            )
        _take_contents(connection, tenant, source.id, target.id)
        numbers = {turn.id: number for number, turn in enumerate(order, 1)}
        _renumber(connection, tenant, target.id, numbers)
        for table in (*_OF_TURNS, conversations):
            its = and_(table.c.tenant == tenant, table.c.session_id == source.id)
            connection.execute(update(table).where(its).values(session_id=target.id))
        connection.execute(delete(sessions).where(_is(source)))
        metadata = {**was.user_metadata, **now.metadata}
        if was.by_content is not now.by_content:
            # What its client named is kept for as long as that.
            del metadata[FOUND_BY]
        current = max(filter(None, currents.values()), key=numbers.__getitem__, default=None)
        values: dict[str, Any] = {
            "metadata": metadata,
            "next_number": len(order) + 1,
            "revision": sessions.c.revision + 1,
            "updated_at": at,
            "listed": True,
        }
        if current is not None and current != currents[target.id]:
            (turn,) = (each for each in order if each.id == current)
            head = select(turns.c.head).where(turns.c.tenant == tenant, turns.c.id == current)
            values |= {"current_turn": current, "token_count": turn.total_tokens}
            values |= {"head": head.scalar_subquery(), "state": SessionState.ACTIVE.value}
        values["current_number"] = numbers[current] if current is not None else 0
        merged = update(sessions).where(_is(target)).values(values).returning(*SESSION)
        session = session_of(connection.execute(merged).one())
        count_again(connection, tenant, target.id)
        return session


def _locked(connection: Connection, *both: Session) -> dict[str, str | None]:
    """The current turn of each. Windows and tags are locked before sessions, and these by their ids. CWM-3002, 4002."""
    tenant, ids = both[0].tenant, sorted(each.id for each in both)
    for table in (windows, turn_tags):
        theirs = select(table.c.name).where(table.c.tenant == tenant, table.c.session_id.in_(ids))
        connection.execute(theirs.order_by(table.c.name).with_for_update()).all()
    currents = {session_id: at_rest(connection, tenant, session_id)[0] for session_id in ids}
    pending = select(windows.c.name).where(
        windows.c.tenant == tenant,
        windows.c.session_id.in_(ids),
        windows.c.durability == Durability.PENDING.value,
    )
    name = connection.execute(pending.limit(1)).scalar()
    if name is not None:
        raise StorageReadError(
            f"Window '{name}' is still being stored; merge its session when it is durable.", window_name=name
        )
    return currents


def _is(session: Session) -> ColumnElement[bool]:
    return and_(
        sessions.c.tenant == session.tenant,
        sessions.c.id == session.id,
        sessions.c.created_at == session.created_at,
    )


def _now(connection: Connection, session: Session) -> Session | None:
    """The session as it is, if it is the one that is meant, and seen and computed as it was."""
    now = find_session(connection, session.tenant, session.id)
    if now is None or any(getattr(now, name) != getattr(session, name) for name in _MEANT):
        return None
    return now


def _turns(connection: Connection, vault: Vault, tenant: str, session_id: str) -> list[Turn]:
    mine = select(*TURN).where(turns.c.tenant == tenant, turns.c.session_id == session_id)
    return [opened_turn(vault, turn_of(row)) for row in connection.execute(mine.order_by(turns.c.number))]


def _attach(connection: Connection, vault: Vault, root: Turn, others: Sequence[Turn]) -> None:
    """Give the first turn of a tree the parent among the turns of the other session with which it shares the most."""
    context = tokens_of(connection, vault, root.tenant, root.session_id, root.id)
    parent, parent_at = _parent(connection, vault, root, context[: root.prompt_tokens], others)
    if parent is None:
        return
    digests, inherited = (
        digests_of(connection, vault, turn.tenant, turn.session_id, turn.id) for turn in (root, parent)
    )
    shared = common_length(tuple(digests), tuple(inherited))
    attached = replace(
        root,
        parent=parent.id,
        parent_at=parent_at,
        parent_messages=shared,
        continues=parent_at >= parent.prompt_tokens,
    )
    added = {"packed": compress(context[parent_at:])[0], "messages": digests[shared:]}
    row = sealed_turn(vault, turn_values(attached) | added)
    this = and_(turns.c.tenant == root.tenant, turns.c.id == root.id)
    connection.execute(update(turns).where(this).values({name: row[name] for name in _REPLACED}))


def _parent(
    connection: Connection, vault: Vault, root: Turn, prompt: TokenIds, others: Sequence[Turn]
) -> tuple[Turn | None, int]:
    """The other turn with the longest common prefix, and its length. Two turns with one prompt are siblings."""
    by_id, shared = {turn.id: turn for turn in others}, dict[str, int]()
    for turn in others:
        shared[turn.id] = shared.get(turn.parent or "", 0)
        if shared[turn.id] >= turn.parent_at:
            added = _added(connection, vault, turn)
            shared[turn.id] = turn.parent_at + common_length(added, prompt[turn.parent_at :])
    parent = max(others, key=lambda turn: (shared[turn.id], turn.number), default=None)
    longest = 0 if parent is None else shared[parent.id]
    # The tokens up to there may be an ancestor's.
    while parent is not None and (longest <= parent.parent_at or parent.prompt_digest == root.prompt_digest):
        longest, parent = min(longest, parent.parent_at), by_id.get(parent.parent or "")
    return parent, longest if parent else 0


def _added(connection: Connection, vault: Vault, turn: Turn) -> TokenIds:
    """The token ids that a turn adds to its parent."""
    this = select(turns.c.packed).where(turns.c.tenant == turn.tenant, turns.c.id == turn.id)
    packed = vault.open(connection.execute(this).scalar() or b"", "tokens", turn.tenant, turn.id)
    size = turn.total_tokens - turn.parent_at
    return join([Delta(packed, size, size)], lambda _: True)


def _take_contents(connection: Connection, tenant: str, source: str, target: str) -> None:
    """The target's own copy of a message stays, unless it is one that is not kept."""
    theirs = select(
        turn_contents.c.tenant,
        literal(target),
        turn_contents.c.digest,
        turn_contents.c.packed,
        turn_contents.c.weight,
    ).where(turn_contents.c.tenant == tenant, turn_contents.c.session_id == source)
    copies = insert_into(connection, turn_contents).from_select(turn_contents.c.keys(), theirs)
    connection.execute(
        copies.on_conflict_do_update(
            index_elements=turn_contents.primary_key.columns.keys(),
            set_={"packed": copies.excluded.packed, "weight": copies.excluded.weight},
            where=turn_contents.c.packed == b"",
        )
    )


def _renumber(connection: Connection, tenant: str, session_id: str, numbers: Mapping[str, int]) -> None:
    """Below zero first: at no moment do two turns have one number."""
    rows = [
        {"of_tenant": tenant, "of_turn": turn_id, "to_session": session_id, "to_number": -number}
        for turn_id, number in numbers.items()
    ]
    if rows:
        connection.execute(_MOVED, rows)
    its = and_(turns.c.tenant == tenant, turns.c.session_id == session_id, turns.c.number < 0)
    connection.execute(update(turns).where(its).values(number=-turns.c.number))
