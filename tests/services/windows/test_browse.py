"""Which windows a listing has."""

from __future__ import annotations

from datetime import timedelta

import pytest

from cwm.domain.list_cursor import ListCursors
from cwm.domain.model_aliases import ModelAliases
from cwm.domain.window import WindowQuery
from cwm.services.windows.browse import Browse
from tests.services.replicas_of import ANN
from tests.services.windows_of import Gateway


@pytest.mark.parametrize(("name", "count"), [("tiny", 1), ("claude-opus", 1), ("another", 0)])
async def test_windows_are_found_by_every_name_of_their_model(cwm: Gateway, name: str, count: int) -> None:
    await cwm.window()
    cwm.directory.aliases = ModelAliases({"claude-*": "tiny", "tiny": "another"})
    browse = Browse(
        registry=cwm.registry,
        kv_tier=cwm.kv_tier,
        directory=cwm.directory,
        cursors=ListCursors([b"a secret"]),
        cursor_ttl=timedelta(minutes=1),
        journal=cwm.freeze.journal,
    )
    assert len((await browse.windows(ANN, WindowQuery(model=name))).windows) == count


async def test_a_session_is_opened_by_an_alias_and_keeps_the_served_model(cwm: Gateway) -> None:
    cwm.directory.aliases = ModelAliases({"claude-*": "tiny"})
    assert (await cwm.open_session(ANN, "s1", "claude-opus")).model == "tiny"
