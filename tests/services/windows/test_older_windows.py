"""Windows from before a session was a tree of turns."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from cwm.adapters.sql import schema
from cwm.adapters.sql.database import open_database
from cwm.domain.prefix import digest
from cwm.domain.session import SessionState
from cwm.domain.turn import TurnSource, TurnState
from cwm.domain.window import Durability, WindowQuery
from cwm.services.turns.reading.history import History
from cwm.transport.mcp.contract.render.turns import turn_shown
from tests.adapters.sql.older_schemas import (
    IDS_OF_0009,
    add_sessions_of_0009,
    add_windows_of_0009,
    upgrade_to,
)
from tests.contracts.nouns import LATER, a_session, a_window
from tests.services.replicas_of import ANN
from tests.services.windows_of import gateway

IDS, BEFORE = IDS_OF_0009[:100], IDS_OF_0009[:70]


async def test_a_window_of_an_older_version_has_its_sessions_turn_and_thaws(empty_database_url: str) -> None:
    database = open_database(empty_database_url)
    cwm = gateway(database)
    identity = await cwm.directory.identity()
    window = a_window(
        "kept",
        snapshot_id=digest(IDS),
        token_count=len(IDS),
        durability=Durability.DURABLE,
        cache_salt=cwm.directory.salt("acme", "acme", identity),
        identity=identity,
    )
    clone = replace(window, name="clone", parent_window="kept", branch_token=len(IDS))
    outlived = replace(
        window, name="outlived", session_id="s2", snapshot_id=digest(BEFORE), token_count=len(BEFORE)
    )
    windows = [(window, IDS), (clone, IDS), (outlived, BEFORE)]
    sessions = [
        a_session("s1", state=SessionState.FROZEN, token_count=len(IDS), frozen_at=LATER),
        a_session("s2", state=SessionState.DELETED, token_count=0),
    ]
    await database.write(partial(upgrade_to, revision="0009"))
    await database.write(partial(add_sessions_of_0009, sessions=sessions))
    await database.write(partial(add_windows_of_0009, windows=windows))
    await schema.upgrade(empty_database_url)

    turn = await cwm.registry.current_turn("acme", "s1")
    assert turn is not None
    listed = (await cwm.registry.windows("acme", WindowQuery())).windows
    assert {each.name: each for each in listed} == {
        "kept": replace(window, turn_id=turn.id),
        "clone": replace(clone, turn_id=turn.id),
        "outlived": outlived,
    }
    for number, (each, token_ids) in enumerate(windows):
        thawed = await cwm.thaw(ANN, each.name, f"again-{number}")
        assert thawed.receipt.tokens_restored + thawed.receipt.tokens_recomputed == len(token_ids)
        assert await cwm.registry.session_tokens("acme", f"again-{number}") == token_ids
        await cwm.says(f"again-{number}", "And then?")

    shown = await History(cwm.registry, cwm.thaw.journal).show(
        ANN, TurnSource(window_name="kept"), tokens=True
    )
    assert (shown.turn.state, shown.messages, shown.token_ids) == (TurnState.ENDED, [], IDS)
    assert "without messages" in turn_shown(shown)["warning"]
    await cwm.settle()
    await database.dispose()
