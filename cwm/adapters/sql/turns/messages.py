"""What was said in turns: titles, messages and token ids, unpacked behind the transaction that read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, func, select

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.rows import at_a_time
from cwm.adapters.sql.tables.sessions import sessions
from cwm.adapters.sql.tables.turns import turn_contents, turns
from cwm.adapters.sql.transactions import reading
from cwm.adapters.sql.turns.findings import SaidIn, matches_in, parts_of, said_in_turns
from cwm.adapters.sql.turns.packed import unpack_json
from cwm.adapters.sql.turns.paths import StoredTokens, digests_of, stored_tokens
from cwm.adapters.sql.turns.sealed import messages_in
from cwm.adapters.sql.turns.titles import LARGEST_UNTITLED, title_in
from cwm.adapters.sql.vault import Vault
from cwm.domain.errors import SessionNotFoundError, StorageCorruptionError, StoredTooLargeError
from cwm.domain.messages import Brief, in_brief
from cwm.domain.prefix import TOKEN_BYTES, TokenIds
from cwm.domain.session import SessionState
from cwm.domain.turn import Message, Turn, TurnState
from cwm.domain.weight import MOST_AT_ONCE, Room, too_large
from cwm.domain.word_search import Finding, Words
from cwm.threads import aside

# Built once, because building it takes longer than running it.
_STANDING: Final = select(sessions.c.current_turn, sessions.c.state).where(
    sessions.c.tenant == bindparam("of_tenant"), sessions.c.id == bindparam("of_id")
)


class MessageRecords:
    database: Database
    vault: Vault

    async def turn_tokens(self, turn: Turn) -> TokenIds:
        return await joined(await self._tokens(turn.tenant, turn.session_id, turn.id))

    @reading
    def _tokens(self, connection: Connection, tenant: str, session_id: str, turn_id: str) -> StoredTokens:
        return stored_tokens(connection, self.vault, tenant, session_id, turn_id)

    async def session_tokens(self, tenant: str, session_id: str) -> TokenIds:
        stored = await self._session_tokens(tenant, session_id)
        return () if stored is None else await joined(stored)

    @reading
    def _session_tokens(self, connection: Connection, tenant: str, session_id: str) -> StoredTokens | None:
        row = connection.execute(_STANDING, {"of_tenant": tenant, "of_id": session_id}).one_or_none()
        if row is not None and row.current_turn is not None:
            return stored_tokens(connection, self.vault, tenant, session_id, row.current_turn)
        if row is None or row.state == SessionState.DELETED.value:
            raise SessionNotFoundError(f"There is no session '{session_id}'.", session_id=session_id)
        return None

    @reading
    def message_digests(self, connection: Connection, turn: Turn) -> tuple[str, ...]:
        return tuple(digests_of(connection, self.vault, turn.tenant, turn.session_id, turn.id))

    async def turn_messages(
        self, turn: Turn, first: int = 0, end: int | None = None, *, whole: bool = False
    ) -> list[Message]:
        digests = (await self.message_digests(turn))[first:end]
        found = await self.messages_with(turn.tenant, turn.session_id, digests, whole=whole)
        by_digest = {message.digest: message for message in found}
        if not by_digest.keys() >= set(digests):
            raise StorageCorruptionError(
                "A message of a turn is gone.", session_id=turn.session_id, turn_id=turn.id
            )
        return [by_digest[digest] for digest in digests]

    async def messages_with(
        self, tenant: str, session_id: str, digests: Sequence[str], *, whole: bool = False
    ) -> list[Message]:
        sizes = await self._sizes(tenant, session_id, digests) if digests else {}
        room, names, left_out = Room(), list[str](), list[Message]()
        for digest in reversed(dict.fromkeys(digests)):
            if digest not in sizes:
                continue
            name, size = sizes[digest]
            if room.has(size):
                room.take(size)
                names.append(name)
            elif whole:
                raise too_large(room.most)
            else:
                left_out.append(_stand_in(digest, size))
        rows = await self._contents(tenant, session_id, names)
        digest_of = {name: digest for digest, (name, _) in sizes.items()}
        return left_out + await aside(
            sum(row.weight or MOST_AT_ONCE for row in rows),
            lambda: self._unpacked(rows, tenant, session_id, digest_of, whole=whole),
        )

    def _unpacked(
        self,
        rows: Sequence[Row[Any]],
        tenant: str,
        session_id: str,
        digest_of: Mapping[str, str],
        *,
        whole: bool,
    ) -> list[Message]:
        """CWM-4004, 4005; 4006 unless it may be less than the ``whole``."""
        room, messages = Room(), list[Message]()
        for row in rows:
            stored = self.vault.open(row.packed, "message", tenant, row.digest)
            try:
                content = unpack_json(stored, row.weight, room, session_id=session_id)
            except StoredTooLargeError:
                if whole:
                    raise
                messages.append(_stand_in(digest_of[row.digest], len(stored)))
            else:
                messages.append(Message(digest_of[row.digest], content))
        return messages

    @reading
    def _sizes(
        self, connection: Connection, tenant: str, session_id: str, digests: Sequence[str]
    ) -> dict[str, tuple[str, int]]:
        """By digest, the name of each message that is there, and its weight, or at least what it takes on the disk."""
        digest_of = {name: digest for digest in set(digests) for name in self.vault.names(tenant, digest)}
        size = func.coalesce(turn_contents.c.weight, func.length(turn_contents.c.packed))
        return {
            digest_of[row.digest]: (row.digest, row.size)
            for batch in at_a_time(sorted(digest_of))
            for row in connection.execute(
                select(turn_contents.c.digest, size.label("size")).where(
                    turn_contents.c.tenant == tenant,
                    turn_contents.c.session_id == session_id,
                    turn_contents.c.digest.in_(batch),
                )
            )
        }

    @reading
    def _contents(
        self, connection: Connection, tenant: str, session_id: str, names: Sequence[str]
    ) -> list[Row[Any]]:
        rows: list[Any] = []
        for batch in at_a_time(names):
            rows += connection.execute(
                select(turn_contents.c.digest, turn_contents.c.packed, turn_contents.c.weight).where(
                    turn_contents.c.tenant == tenant,
                    turn_contents.c.session_id == session_id,
                    turn_contents.c.digest.in_(batch),
                )
            ).all()
        return rows

    async def findings(
        self, tenant: str, session_id: str, words: Words, up_to: str | None = None
    ) -> tuple[list[Finding], int]:
        turns_said = await self._said_in_turns(tenant, session_id, up_to)
        digests = dict.fromkeys(digest for said in turns_said for digest in reversed(said.digests))
        sizes = await self._sizes(tenant, session_id, [*digests]) if digests else {}
        in_order = dict(sizes[digest] for digest in digests if digest in sizes)
        matches, count = dict[str, tuple[str, str]](), 0
        for names in parts_of(in_order):
            rows = await self._contents(tenant, session_id, names)
            count += len(rows)
            size = sum(in_order[name] for name in names)
            matches |= await aside(size, partial(matches_in, rows, self.vault, tenant, words))
        by_digest = {digest: matches[name] for digest, (name, _) in sizes.items() if name in matches}
        findings = [
            Finding(session_id, said.turn_id, said.number, index, *by_digest[digest], said.asked_at, digest)
            for said in turns_said
            for index, digest in reversed([*enumerate(said.digests)])
            if digest in by_digest
        ]
        return findings, count

    @reading
    def _said_in_turns(
        self, connection: Connection, tenant: str, session_id: str, up_to: str | None
    ) -> list[SaidIn]:
        return said_in_turns(connection, self.vault, (tenant, session_id), up_to)

    async def titles(self, tenant: str, turn_ids: Sequence[str]) -> dict[str, Brief]:
        titles, untitled = await self._titles(tenant, turn_ids)
        for session_id, digest_of in untitled.items():
            # They are from before there were titles.
            sizes = await self._sizes(tenant, session_id, list(digest_of.values()))
            for turn_id, digest in digest_of.items():
                name, size = sizes.get(digest, ("", 0))
                if name and size <= LARGEST_UNTITLED:
                    with suppress(StorageCorruptionError, StoredTooLargeError):
                        titles[turn_id] = await self._brief(tenant, session_id, name)
        return titles

    async def _brief(self, tenant: str, session_id: str, name: str) -> Brief:
        (row,) = await self._contents(tenant, session_id, [name]) or (None,)
        if row is None:
            return Brief()

        def unpack() -> Brief:
            stored = self.vault.open(row.packed, "message", tenant, row.digest)
            return in_brief(unpack_json(stored, row.weight, Room(LARGEST_UNTITLED), session_id=session_id))

        return await aside(row.weight or LARGEST_UNTITLED, unpack)

    @reading
    def _titles(
        self, connection: Connection, tenant: str, turn_ids: Sequence[str]
    ) -> tuple[dict[str, Brief], dict[str, dict[str, str]]]:
        """The titles by turn id; and by session and turn id, of turns that have none, the digest of what was asked: an answer is the last message."""
        titles, untitled = dict[str, Brief](), dict[str, dict[str, str]]()
        for batch in at_a_time(sorted(turn_ids)):
            these = select(turns.c.id, turns.c.session_id, turns.c.title, turns.c.messages).where(
                turns.c.tenant == tenant, turns.c.id.in_(batch), turns.c.state == TurnState.ENDED.value
            )
            for row in connection.execute(these):
                with suppress(StorageCorruptionError):
                    if row.title is not None:
                        titles[row.id] = title_in(self.vault.open(row.title, "title", tenant, row.id))
                    elif digests := messages_in(self.vault, tenant, row.id, row.messages)[-2:]:
                        untitled.setdefault(row.session_id, {})[row.id] = digests[0]
        return titles, untitled


async def joined(stored: StoredTokens) -> TokenIds:
    """CWM-4004."""
    return await aside(stored.token_count * TOKEN_BYTES, stored.join)


def _stand_in(digest: str, size: int) -> Message:
    """In place of a message that is too large to be read, alone or with the newer ones."""
    return Message(
        digest,
        {
            "role": "not shown",
            "content": f"[This message takes {size / 2**20:.1f} MB or more: too much to be read with the others.]",
        },
    )
