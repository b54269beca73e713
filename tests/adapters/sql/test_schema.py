from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, column, insert, inspect, select, table, text

from cwm import shipped
from cwm.adapters.sql import schema
from cwm.adapters.sql.api_keys import SqlApiKeys
from cwm.adapters.sql.database import Database, open_database
from cwm.adapters.sql.kv.noise import SqlNoise
from cwm.adapters.sql.kv.turn_sums import SqlTurnSums
from cwm.adapters.sql.registry import snapshots
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.sql.rows import session_values, turn_values
from cwm.adapters.sql.schema_error import SchemaError
from cwm.adapters.sql.tables import metadata
from cwm.adapters.sql.tables.sessions import canaries, sessions
from cwm.adapters.sql.turns.conversations import SqlConversations
from cwm.adapters.sql.turns.packed import compress, pack_json
from cwm.adapters.sql.turns.stored_bytes import ROW_BYTES, TURN_BYTES, SqlStoredBytes
from cwm.adapters.sql.window_list import search as window_search
from cwm.adapters.sql.window_list.search import RowLimits
from cwm.adapters.sql.window_list.terms import search_values
from cwm.domain.answers import KeyKind
from cwm.domain.canary import Canary, Origin
from cwm.domain.errors import StorageReadError, StorageWriteError
from cwm.domain.look import Look
from cwm.domain.noise import Noise
from cwm.domain.prefix import digest
from cwm.domain.response import ItemSum
from cwm.domain.session import SessionQuery
from cwm.domain.turn import Turn, TurnParts, TurnQuery, TurnState
from cwm.domain.turn_sums import TurnSum, hour_of
from cwm.domain.window import WindowQuery, WindowSort
from tests.adapters.sql.older_schemas import (
    IDS_OF_0009,
    add_sessions_of_0009,
    add_windows_of_0009,
    before_0011,
    before_0015,
    before_0021,
    upgrade_to,
    window_row_of_0009,
)
from tests.contracts.nouns import IDS, LATER, NOW, a_session, a_turn, a_window, freeze

pytestmark = pytest.mark.slow

_TABLES = {*metadata.tables, "alembic_version"}
# An FTS5 table on SQLite: what keeps it is SQLite's own, and no metadata can say what it is like.
_FTS = "window_grams"
_OF_FTS = {f"{_FTS}_config", f"{_FTS}_data", f"{_FTS}_idx"}


_CANARY_OF_0020: Final = ("tenant", "snapshot_id", "cache_salt", "content")


def _differences(connection: Connection) -> list[object]:
    def comparable(_item: object, name: str | None, kind: str, *_: object) -> bool:
        return connection.dialect.name != "sqlite" or kind != "table" or name not in {_FTS, *_OF_FTS}

    options = {"compare_type": True, "include_object": comparable}
    context = MigrationContext.configure(connection, opts=options)
    return list(compare_metadata(context, metadata))


async def _pretend(database: Database, revision: str) -> None:
    pretended = text("UPDATE alembic_version SET version_num = :r")
    await database.write(lambda connection: connection.execute(pretended, {"r": revision}))


async def test_the_migrations_make_exactly_the_tables_the_code_expects(
    database: Database, database_url: str
) -> None:
    assert await database.read(_differences) == []
    names = await database.read(lambda connection: inspect(connection).get_table_names())
    assert set(names) == (_TABLES | _OF_FTS if database_url.startswith("sqlite") else _TABLES)


def test_the_code_knows_every_migration_in_its_order() -> None:
    script = ScriptDirectory(str(shipped.folder("migrations")))
    newest_first = [revision.revision for revision in script.walk_revisions()]
    assert tuple(reversed(newest_first)) == schema.REVISIONS


def test_every_migration_says_in_its_name_what_it_does() -> None:
    for path in shipped.folder("migrations").glob("versions/*.py"):
        number, _, sentence = path.stem.partition("_")
        assert number in schema.REVISIONS
        assert sentence.count("_") >= 2, path.name


async def test_an_upgrade_tells_what_it_applied_and_then_has_nothing_to_do(empty_database_url: str) -> None:
    assert await schema.upgrade(empty_database_url) == list(schema.REVISIONS)
    assert await schema.upgrade(empty_database_url) == []


async def test_upgrades_at_once_apply_each_revision_once(empty_database_url: str) -> None:
    applied = await asyncio.gather(*(schema.upgrade(empty_database_url) for _ in range(4)))
    assert sorted(applied) == [[], [], [], list(schema.REVISIONS)]


async def test_a_current_schema_is_accepted(database: Database) -> None:
    await schema.require_current(database)
    assert not await schema.is_empty(database)


async def test_an_empty_database_is_refused_with_what_to_run(empty_database_url: str) -> None:
    database = open_database(empty_database_url)
    try:
        assert await schema.is_empty(database)
        with pytest.raises(SchemaError, match="no CWM tables yet: run `cwm migrate`"):
            await schema.require_current(database)
        with pytest.raises(StorageReadError, match="run `cwm migrate`"):
            await SqlRegistry(database).window("acme", "w1")
    finally:
        await database.dispose()


async def test_an_older_schema_is_refused_with_what_to_run(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = schema.REVISIONS[-1]
    monkeypatch.setattr(schema, "REVISIONS", (*schema.REVISIONS, "8888"))
    with pytest.raises(SchemaError, match=f"is {newest}, this version of CWM needs 8888: run `cwm migrate`"):
        await schema.require_current(database)


async def test_a_schema_of_a_newer_cwm_is_refused_and_left_alone(
    database: Database, database_url: str
) -> None:
    await _pretend(database, "9999")
    try:
        with pytest.raises(SchemaError, match="9999, which this version of CWM does not know"):
            await schema.require_current(database)
        with pytest.raises(SchemaError, match="9999"):
            await schema.upgrade(database_url)
    finally:
        await _pretend(database, schema.REVISIONS[-1])


async def test_a_migration_that_breaks_off_leaves_nothing(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _broken_copy(shipped.folder("migrations"), tmp_path)
    monkeypatch.setattr(shipped, "folder", lambda _name: tmp_path)
    with pytest.raises(StorageWriteError):
        await schema.upgrade(empty_database_url)
    database = open_database(empty_database_url)
    assert await schema.is_empty(database)
    await database.dispose()


def _broken_copy(migrations: Path, to: Path) -> None:
    (to / "versions").mkdir()
    (to / "env.py").write_text((migrations / "env.py").read_text())
    first = next(migrations.glob("versions/0001_*.py")).read_text()
    (to / "versions" / "0001_first.py").write_text(f"{first}\n    op.execute('SELECT * FROM nowhere')\n")


@pytest.mark.slow
async def test_windows_of_an_older_schema_are_found_as_before(empty_database_url: str) -> None:
    database = open_database(empty_database_url)
    try:
        await database.write(partial(upgrade_to, revision="0005"))
        await database.write(_a_window_of_0005)
        assert (await schema.upgrade(empty_database_url))[-1] == schema.REVISIONS[-1]
        registry = SqlRegistry(database)
        for query in (
            WindowQuery(),
            WindowQuery(tags=("red", "Blue")),
            WindowQuery(model="tiny", sort_by=WindowSort.SIZE),
            WindowQuery(search="STRASSE"),
        ):
            found = await registry.windows("acme", query)
            assert ([window.name for window in found.windows], found.total) == (["old"], 1)
            # As a list of a great many would look for it.
            limits = RowLimits(gathered=0, walked=0)
            again = await database.read(
                partial(window_search.find, tenant="acme", query=query, limits=limits)
            )
            assert again.windows == found.windows
        await registry.remove_window(found.windows[0], found.windows[0].created_at)
        assert (await registry.windows("acme", WindowQuery())).total == 0
    finally:
        await database.dispose()


@pytest.mark.slow
async def test_what_an_older_schema_has_stays_visible_to_its_tenant(empty_database_url: str) -> None:
    database = open_database(empty_database_url)
    ids = IDS_OF_0009[:40]
    try:
        await database.write(partial(upgrade_to, revision="0009"))
        owned = [a_session(f"of-{owner}", owner=owner, token_count=40) for owner in ("ann", "bob")]
        await database.write(partial(add_sessions_of_0009, sessions=owned))
        frozen = [
            a_window(f"w-{each.owner}", session_id=each.id, owner=each.owner, snapshot_id=digest(ids))
            for each in owned
        ]
        await database.write(partial(add_windows_of_0009, windows=[(window, ids) for window in frozen]))
        assert (await schema.upgrade(empty_database_url))[-1] == schema.REVISIONS[-1]
        registry, circles = SqlRegistry(database), frozenset({"tenant"})
        sessions = await registry.sessions("acme", SessionQuery(circles=circles))
        assert {(session.owner, session.circle) for session in sessions} == {
            ("ann", "tenant"),
            ("bob", "tenant"),
        }
        for query in (WindowQuery(circles=circles), WindowQuery(model="tiny", search="w-", circles=circles)):
            windows = (await registry.windows("acme", query)).windows
            assert {(w.owner, w.circle) for w in windows} == {("ann", "tenant"), ("bob", "tenant")}
        assert await registry.share_window(frozen[0], "owner:ann", LATER)
        (left,) = (await registry.windows("acme", WindowQuery(circles=circles))).windows
        assert left.owner == "bob"
    finally:
        await database.dispose()


@pytest.mark.slow
async def test_tokens_of_sessions_of_an_older_schema_become_their_first_turns(
    empty_database_url: str,
) -> None:
    database = open_database(empty_database_url)
    names = [f"s{number:04}" for number in range(1_100)]
    keys = [("acme", "begun"), ("bolt", "s0007"), *(("acme", name) for name in names)]
    sessions = {
        key: a_session(key[1], key[0], owner=f"owner-{n}", token_count=n, updated_at=LATER)
        for n, key in enumerate(keys)
    }
    try:
        await database.write(partial(upgrade_to, revision="0009"))
        await database.write(partial(add_sessions_of_0009, sessions=[*sessions.values()]))
        assert (await schema.upgrade(empty_database_url))[0] == "0010"
        registry = SqlRegistry(database)
        for key in (*keys[:3], *keys[::97], keys[-1]):
            session = sessions[key]
            assert await registry.session(*key) == session
            assert await registry.session_tokens(*key) == IDS_OF_0009[: session.token_count]
            turn = await registry.current_turn(*key)
            assert await registry.turns(*key, TurnQuery()) == ([turn] if turn else [])
            if turn is None:
                assert session.token_count == 0
                continue
            content = digest(IDS_OF_0009[: session.token_count])
            assert turn == Turn(
                tenant=session.tenant,
                session_id=session.id,
                id=turn.id,
                author=session.owner,
                asked_at=LATER,
                ended_at=LATER,
                number=1,
                state=TurnState.ENDED,
                prompt_tokens=session.token_count,
                total_tokens=session.token_count,
                prompt_digest=content,
                digest=content,
                main=True,
            )
            assert await registry.turn_messages(turn) == []
        assert await _numbers_of_next_turns(registry) == [1, 2]
        first = await registry.current_turn("acme", names[-1])
        assert first is not None
        child = a_turn("child", names[-1], parent=first.id, parent_at=first.total_tokens)
        assert await registry.begin_turn(child, NOW) is not None
        grown = replace(
            child,
            number=2,
            total_tokens=first.total_tokens + 1,
            digest=digest((*IDS_OF_0009[: first.total_tokens], 1)),
            main=True,
            ended_at=LATER,
        )
        assert await registry.end_turn(grown, TurnParts((1,))) is not None
        assert len(await registry.session_tokens("acme", names[-1])) == first.total_tokens + 1
        assert names[-1] in await registry.live_sessions_with_head("acme", "acme", IDS_OF_0009)
    finally:
        await database.dispose()


async def _numbers_of_next_turns(registry: SqlRegistry) -> list[int]:
    """Of a session without tokens and of one with tokens."""
    asked = [
        await registry.begin_turn(a_turn("t", "begun", "acme"), NOW),
        await registry.begin_turn(a_turn("t", "s0007", "bolt"), NOW),
    ]
    return [turn.number for turn in asked if turn]


@pytest.mark.slow
async def test_turns_of_an_older_schema_stay_as_they_are(empty_database_url: str) -> None:
    database = open_database(empty_database_url)
    try:
        await database.write(partial(upgrade_to, revision="0012"))
        await database.write(_a_turn_of_0012)
        assert await schema.upgrade(empty_database_url) == [*schema.REVISIONS[12:]]
        registry = SqlRegistry(database)
        (turn,) = await registry.turns("acme", "s1", TurnQuery())
        assert (turn.id, turn.chain, turn.compactions, turn.router_decision) == ("t1", "c1", None, None)
        assert await registry.turn_tokens(turn) == IDS_OF_0009
        (found,) = await registry.recorded_answers("acme", "ann", "tiny", KeyKind.CHAIN, ["c1"])
        assert found.turn == turn
        columns = await database.read(lambda connection: inspect(connection).get_columns("turns"))
        if empty_database_url.startswith("sqlite"):
            assert [column["name"] for column in columns[-8:]] == [
                "packed",
                "router_decision",
                "trace_id",
                "title",
                "calls",
                "core_chain",
                "joined",
                "sealed_keys",
            ]
        indexes = await database.read(lambda connection: inspect(connection).get_indexes("turns"))
        partly = {
            index["name"]
            for index in indexes
            if any(option.endswith("_where") for option in index.get("dialect_options", {}))
        }
        assert partly == {"ix_turns_asked", "ix_turns_chain", "ix_turns_calls", "ix_turns_core_chain"}
    finally:
        await database.dispose()


@pytest.mark.slow
async def test_gateways_of_0018_go_on_beside_the_sums_of_turns(empty_database_url: str) -> None:
    database = open_database(empty_database_url)
    try:
        await database.write(partial(upgrade_to, revision="0018"))
        registry, sums = SqlRegistry(database), SqlTurnSums(database)
        before = before_0021(session_values(a_session("before", "acme", token_count=0))) | {"head": None}
        of_0018 = table("sessions", *(column(name, sessions.c[name].type) for name in before))
        await database.write(lambda connection: connection.execute(insert(of_0018).values(before)))
        assert await schema.upgrade(empty_database_url) == [*schema.REVISIONS[18:]]
        # A gateway of that version writes what it always wrote, and no sum.
        await registry.add_session(a_session("after", "acme"), IDS_OF_0009)
        assert await registry.session("acme", "before") == a_session("before", "acme", token_count=0)
        assert await registry.session_tokens("acme", "after") == IDS_OF_0009
        assert await sums.turn_sums("acme", NOW) == {}
        hour = hour_of(NOW)
        await sums.add_turn_sums_of_every_tenant({("acme", hour): TurnSum(1, 2_000, 1_500)}, hour)
        assert await sums.turn_sums("acme", hour) == {hour: TurnSum(1, 2_000, 1_500)}
    finally:
        await database.dispose()


async def test_what_is_stored_from_before_0022_is_summed(empty_database_url: str) -> None:
    database = open_database(empty_database_url)
    try:
        await database.write(partial(upgrade_to, revision="0019"))
        await database.write(_a_turn_of_0019)
        conversation = {
            "tenant": "acme", "id": "conv_1", "owner": "bob", "created_at": NOW, "touched_at": NOW, "metadata": {},
        }  # fmt: skip
        item = {"tenant": "acme", "conversation_id": "conv_1", "number": 1, "id": "msg_1"}
        packed = pack_json({"id": "msg_1", "role": "user"})
        for name, row in (
            ("conversations", conversation),
            ("conversation_items", item | {"packed": packed.stored}),
        ):
            old = table(name, *(column(each, metadata.tables[name].c[each].type) for each in row))
            adding = insert(old).values(row)
            await database.write(lambda connection, adding=adding: connection.execute(adding))  # type: ignore[misc]
        await schema.upgrade(empty_database_url)
        tokens, _ = compress(IDS_OF_0009)
        stored = await SqlStoredBytes(database).by_owner("acme")
        assert stored == {"ann": ROW_BYTES + TURN_BYTES + len(tokens), "bob": ROW_BYTES + len(packed.stored)}
        records = SqlConversations(database)
        assert await records.sum("acme", "bob", "conv_1") == ItemSum(1, packed.weight)
        assert await records.items("acme", "bob", "conv_1") == [{"id": "msg_1", "role": "user"}]
        assert await SqlRegistry(database).titles("acme", ["t1"]) == {}
    finally:
        await database.dispose()


async def test_sessions_from_before_0024_are_listed_but_those_that_refused_requests_left(
    empty_database_url: str,
) -> None:
    database = open_database(empty_database_url)
    try:
        await database.write(partial(upgrade_to, revision="0019"))
        await database.write(_a_turn_of_0019)
        found = a_session("refused", metadata={"found_by": "content"})
        for session in (found, a_session("made"), a_session("own", metadata={"a": 1})):
            row = before_0021(session_values(session)) | {"head": None}
            adding = insert(metadata.tables["sessions"]).values(row)
            await database.write(lambda connection, adding=adding: connection.execute(adding))  # type: ignore[misc]
        registry = SqlRegistry(database)
        await schema.upgrade(empty_database_url)
        listed = await registry.sessions("acme", SessionQuery())
        assert {session.id for session in listed} == {"s1", "made", "own"}
        (left,) = await registry.unanswered_sessions_of_every_tenant(LATER, 10)
        assert left.id == "refused"
        # A gateway of 0022 goes on beside the new ones, and its turns say nothing of lists.
        turn = await registry.begin_turn(a_turn("t2", "refused"), left.created_at)
        assert turn is not None
        its = text("UPDATE sessions SET current_turn = 't2' WHERE id = 'refused'")
        await database.write(lambda connection: connection.execute(its))
        assert len(await registry.sessions("acme", SessionQuery())) == 4
    finally:
        await database.dispose()


@pytest.mark.slow
async def test_turns_keys_and_windows_of_0019_stay_as_they_are(empty_database_url: str) -> None:
    database = open_database(empty_database_url)
    try:
        await database.write(partial(upgrade_to, revision="0019"))
        await database.write(_a_turn_of_0019)
        before = {
            "tenant": "acme", "key_id": "00000000000000aa", "name": "ci", "scopes": ["admin"],
            "digest": "d", "created_at": NOW, "workspaces": [],
        }  # fmt: skip
        of_0019 = table(
            "api_keys", *(column(name, metadata.tables["api_keys"].c[name].type) for name in before)
        )
        await database.write(lambda connection: connection.execute(insert(of_0019).values(before)))
        assert await schema.upgrade(empty_database_url) == [*schema.REVISIONS[19:]]
        registry, keys = SqlRegistry(database), SqlApiKeys(database)
        (turn,) = await registry.turns("acme", "s1", TurnQuery())
        assert (turn.id, turn.router_decision, turn.trace_id) == ("t1", "w-2", None)
        assert await registry.turn_tokens(turn) == IDS_OF_0009
        (key,) = await keys.listed("acme")
        assert (key.name, key.last_used_at) == ("ci", None)
        # A gateway of that version goes on to add keys that say nothing of their use.
        later = before | {"key_id": "00000000000000bb"}
        await database.write(lambda connection: connection.execute(insert(of_0019).values(later)))
        assert [each.last_used_at for each in await keys.listed("acme")] == [None, None]
    finally:
        await database.dispose()


@pytest.mark.slow
async def test_canaries_of_0020_are_none_and_a_gateway_of_it_goes_on_beside_the_new_ones(
    empty_database_url: str,
) -> None:
    database = open_database(empty_database_url)
    try:
        await database.write(partial(upgrade_to, revision="0020"))
        registry, decoded = SqlRegistry(database), {"token_ids": [7, 8], "top": [{"7": -0.25}, {"8": -0.5}]}
        of_0020 = table("canaries", *(column(name, canaries.c[name].type) for name in _CANARY_OF_0020))
        values = ("acme", digest(IDS), a_window().cache_salt, decoded)
        row = dict(zip(_CANARY_OF_0020, values, strict=True))
        session = before_0021(session_values(a_session("older"))) | {"head": None}

        def a_canary_of_0020(connection: Connection) -> None:
            connection.execute(insert(metadata.tables["sessions"]).values(session))
            snapshots.keep(connection, "acme", IDS)
            connection.execute(insert(of_0020).values(row))

        await database.write(a_canary_of_0020)
        assert await schema.upgrade(empty_database_url) == [*schema.REVISIONS[20:]]
        assert await registry.session("acme", "older") == a_session("older", proven_tokens=0)
        window = await freeze(registry, "w1", "aa")
        assert await registry.canary("acme", window.snapshot_id, window.cache_salt) is None
        assert await registry.unproven_windows_of_every_tenant(10) == [window]
        look = Look((33, 65), ({7: -0.25}, {8: -0.5}))
        assert await registry.record_canary(window, Canary(look, Origin.COMPUTED))
        assert await registry.unproven_windows_of_every_tenant(10) == []
        read = select(of_0020.c.content).where(of_0020.c.tenant == "acme")
        content = await database.read(lambda connection: connection.execute(read).scalar_one())
        assert (content["token_ids"], content["top"]) == ([], []), "it finds no tokens to replay"
        # A gateway of that version goes on to add canaries of its own, which prove nothing here.
        beside = row | {"cache_salt": "another"}
        await database.write(lambda connection: connection.execute(insert(of_0020).values(beside)))
        assert await registry.canary("acme", window.snapshot_id, "another") is None
        assert await SqlNoise(database).noise("engine-1") == Noise()
    finally:
        await database.dispose()


_SINCE_0020: Final = ("trace_id", "calls", "core_chain", "joined")


def _a_turn_of_0019(connection: Connection) -> None:
    connection.execute(
        insert(metadata.tables["sessions"]).values(before_0021(session_values(a_session())) | {"head": None})
    )
    packed, content = compress(IDS_OF_0009)
    count = len(IDS_OF_0009)
    turn = a_turn(
        number=1, state=TurnState.ENDED, prompt_tokens=count, total_tokens=count, digest=content,
        router_decision="w-2",
    )  # fmt: skip
    values = turn_values(turn) | {"packed": packed, "messages": []}
    for later in _SINCE_0020:
        del values[later]
    connection.execute(insert(metadata.tables["turns"]).values(values))


def _a_turn_of_0012(connection: Connection) -> None:
    connection.execute(
        insert(metadata.tables["sessions"]).values(before_0015(session_values(a_session())) | {"head": None})
    )
    packed, content = compress(IDS_OF_0009)
    count = len(IDS_OF_0009)
    turn = a_turn(
        number=1, state=TurnState.ENDED, prompt_tokens=count, total_tokens=count, digest=content, chain="c1"
    )
    values = turn_values(turn) | {"packed": packed, "messages": []}
    for later in ("compactions", "router_decision", *_SINCE_0020):
        del values[later]
    connection.execute(insert(metadata.tables["turns"]).values(values))


def _a_window_of_0005(connection: Connection) -> None:
    connection.execute(
        insert(metadata.tables["sessions"]).values(before_0011(session_values(a_session())) | {"head": None})
    )
    snapshot = {"tenant": "acme", "id": a_window().snapshot_id, "token_count": 1, "packed": b""}
    connection.execute(insert(metadata.tables["snapshots"]).values(snapshot))
    window = a_window("old", description="Alte Straße", tags=("red", "Blue"))
    connection.execute(insert(metadata.tables["windows"]).values(window_row_of_0009(window)))
    values = before_0011(search_values(window))
    # Its table then had these columns and no id.
    before = table(
        "window_search", *(column(name, metadata.tables["window_search"].c[name].type) for name in values)
    )
    connection.execute(insert(before).values(values))
