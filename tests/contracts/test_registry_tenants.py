"""Whatever a tenant asks, in whatever order, it sees and changes nothing of another's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count
from typing import Any, Final, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cwm.domain.canary import Canary, Origin
from cwm.domain.errors import CwmError
from cwm.domain.intent import Debt
from cwm.domain.keep import TreeLimit
from cwm.domain.look import Look
from cwm.domain.prefix import digest
from cwm.domain.session import SessionQuery, SessionState
from cwm.domain.turn import Message, Turn, TurnParts, TurnQuery, TurnTag
from cwm.domain.window import Window, WindowQuery
from cwm.domain.word_search import Words
from cwm.ports.registry import Registry
from tests.contracts.nouns import (
    IDENTITY,
    IDS,
    LATER,
    NOW,
    a_session,
    a_turn,
    a_window,
    clone,
    recorded,
    remove,
    stored,
)

pytestmark = pytest.mark.slow

_SECRET: Final = "of-the-other-tenant"
_IDS_OF_B: Final = (*IDS, 4242)
_NAMES: Final = ("w1", "w2")
_MESSAGE: Final = Message("m", {"of": "this tenant"})
_CANARY: Final = Canary(Look((33,), ({7: -0.25},)), Origin.COMPUTED)
_DEBT: Final = Debt("/models/tiny", 1, 32, len(IDS), pinned=True, hashes=("aa",))

Call: TypeAlias = Callable[[Registry, str, str], Awaitable[Any]]


async def _clone(registry: Registry, tenant: str, name: str) -> Any:
    source = await registry.window(tenant, name)
    return source and await clone(registry, source, "w2" if name == "w1" else "w1")


def _of(tenant: str, name: str) -> Window:
    return a_window(name, tenant, session_id=f"of-{name}")


def _turn(tenant: str, name: str) -> Turn:
    """With the id of the other tenant's turn, and that of the other's as its parent."""
    return a_turn(
        f"t-{name}",
        f"of-{name}",
        tenant,
        number=2,
        parent="t-live",
        parent_at=len(IDS),
        total_tokens=2 * len(IDS),
        main=True,
        ended_at=LATER,
    )


def _tag(tenant: str, name: str) -> TurnTag:
    return TurnTag(tenant, f"tag-{name}", f"of-{name}", f"t-{name}", "ann", LATER)


async def _end_intents(registry: Registry, tenant: str, name: str) -> Any:
    """Also those of the other tenant, by their ids and under this one's name."""
    for intent in await registry.intents_of_every_tenant():
        await registry.hand_over(tenant, intent.id)
        await registry.take_over(replace(intent, tenant=tenant), f"thief-of-{name}")
        await registry.end_intent(tenant, intent.id)


_CALLS: Final[dict[str, Call]] = {
    "add_session": lambda r, t, n: r.add_session(a_session(f"of-{n}", t), IDS),
    "session": lambda r, t, n: r.session(t, f"of-{n}"),
    "session_tokens": lambda r, t, n: r.session_tokens(t, f"of-{n}"),
    "begin_turn": lambda r, t, n: r.begin_turn(_turn(t, n), NOW),
    "end_turn": lambda r, t, n: r.end_turn(_turn(t, n), TurnParts(IDS, (_MESSAGE,))),
    "end_side_turn": lambda r, t, n: r.end_turn(replace(_turn(t, n), main=False), TurnParts(IDS)),
    "recorded": lambda r, t, n: recorded(r, t, f"of-{n}", (*IDS, 1), LATER),
    "drop_turn": lambda r, t, n: r.drop_turn(_turn(t, n)),
    "turn": lambda r, t, n: r.turn(t, f"t-{n}"),
    "current_turn": lambda r, t, n: r.current_turn(t, f"of-{n}"),
    "turns": lambda r, t, n: r.turns(t, f"of-{n}", TurnQuery()),
    "turn_tokens": lambda r, t, n: r.turn_tokens(_turn(t, n)),
    "turn_messages": lambda r, t, n: r.turn_messages(_turn(t, n)),
    "findings": lambda r, t, n: r.findings(t, f"of-{n}", Words(("said",))),
    "message_digests": lambda r, t, n: r.message_digests(_turn(t, n)),
    "revert": lambda r, t, n: r.revert(_turn(t, n), LATER),
    "remove_branch": lambda r, t, n: r.remove_branch(_turn(t, n)),
    "tag": lambda r, t, n: r.tag(_tag(t, n), move=True),
    "untag": lambda r, t, n: r.untag(t, f"tag-{n}"),
    "tags": lambda r, t, n: r.tags(t, f"of-{n}"),
    "every_tag": lambda r, t, n: r.tags(t),
    "tagged": lambda r, t, n: r.turn(t, f"tag:tag-{n}"),
    "windows_about": lambda r, t, _: r.windows_about(t, "ann"),
    "turns_elsewhere": lambda r, t, _: r.turns_elsewhere(t, "bob"),
    "tree_size": lambda r, t, n: r.tree_size(t, f"of-{n}"),
    "make_room": lambda r, t, n: r.make_room(a_session(f"of-{n}", t), TreeLimit(turns=1)),
    "merge_sessions": lambda r, t, n: r.merge_sessions(
        a_session(f"of-{n}", t), a_session("of-w1" if n == "w2" else "of-w2", t), LATER
    ),
    "unfreeze": lambda r, t, n: r.unfreeze(a_session(f"of-{n}", t), LATER),
    "share_session": lambda r, t, n: r.share_session(a_session(f"of-{n}", t), "owner:ann"),
    "share_window": lambda r, t, n: r.share_window(_of(t, n), "owner:ann", LATER),
    "keep_window": lambda r, t, n: r.keep_window(_of(t, n), None, LATER),
    "sessions": lambda r, t, n: r.sessions(t, SessionQuery(limit=100)),
    "live_sessions_with_head": lambda r, t, n: r.live_sessions_with_head(t, "shared", IDS),
    "begin_freeze": lambda r, t, n: r.begin_freeze(a_window(n, t, session_id=f"of-{n}"), IDS, 0),
    "finish_freeze": lambda r, t, n: r.finish_freeze(_of(t, n), stored("aa"), LATER),
    "canary": lambda r, t, n: r.canary(t, digest(IDS), f"salt-of-{t}"),
    "record_canary": lambda r, t, n: r.record_canary(_of(t, n), _CANARY),
    "doubt_windows": lambda r, t, n: r.doubt_windows(_of(t, n), ["aa", "bb"]),
    "set_apart": lambda r, t, n: r.set_apart(a_session(f"of-{n}", t), f"session:of-{n}", "salt"),
    "store_again": lambda r, t, n: r.store_again(
        a_window(n, t, session_id=f"of-{n}"),
        "shared",
        f"salt-2-of-{t}",
        IDENTITY,
        LATER,
        pinned=True,
        debt=_DEBT,
    ),
    "begin_quarantine": lambda r, t, n: r.begin_quarantine(_of(t, n), LATER),
    "begin_thaw": lambda r, t, n: r.begin_thaw(a_window(n, t), "thawed", LATER),
    "intents": lambda r, t, n: r.intents(t, n),
    "proven": lambda r, t, n: r.proven(_of(t, n), LATER),
    "guaranteed_bytes": lambda r, t, n: r.guaranteed_bytes(t),
    "unreferenced": lambda r, t, n: r.unreferenced(t, "salt", ["aa", "bb"]),
    "expire_session": lambda r, t, n: r.expire_session(a_session(f"of-{n}", t), LATER),
    "remove_session": lambda r, t, n: r.remove_session(t, f"of-{n}", LATER, f"salt-of-{t}", _DEBT),
    "end_intents": _end_intents,
    "current_scope": lambda r, t, n: r.current_scope(t, "shared"),
    "retire_scope": lambda r, t, n: r.retire_scope(t, "shared"),
    "fail_freeze": lambda r, t, n: r.fail_freeze(_of(t, n), "why", LATER),
    "undo_freeze": lambda r, t, n: r.undo_freeze(_of(t, n), SessionState.ACTIVE),
    "add_clone": _clone,
    "window": lambda r, t, n: r.window(t, n),
    "windows": lambda r, t, n: r.windows(t, WindowQuery(search="w")),
    "rename_window": lambda r, t, n: r.rename_window(_of(t, n), f"{n}-renamed", LATER),
    "every_window": lambda r, t, n: r.windows(t, WindowQuery()),
    "snapshot": lambda r, t, n: r.snapshot(t, digest(IDS)),
    "their_snapshot": lambda r, t, n: r.snapshot(t, digest(_IDS_OF_B)),
    "chunks": lambda r, t, n: r.chunks(t, n),
    "dependents": lambda r, t, n: r.dependents(t, n),
    "chunks_of_other_windows": lambda r, t, n: r.chunks_of_other_windows(t, n),
    "remove_window": lambda r, t, n: remove(r, n, _DEBT, tenant=t),
    "totals": lambda r, t, n: r.totals(t),
}

_tenants = count()


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(st.tuples(st.sampled_from(sorted(_CALLS)), st.sampled_from(_NAMES)), max_size=25))
async def test_no_sequence_of_calls_returns_or_changes_what_is_another_tenants(
    registry: Registry, calls: list[tuple[str, str]]
) -> None:
    run = next(_tenants)
    mine, theirs = f"a{run}", f"b{run}"
    await _furnish(registry, theirs)
    before = await _everything(registry, theirs)
    for call, name in calls:
        try:
            answer = await _CALLS[call](registry, mine, name)
        except CwmError as refused:
            answer = refused.as_dict()
        shown = repr(answer)
        assert _SECRET not in shown
        assert repr(_IDS_OF_B) not in shown
        assert f"'{theirs}'" not in shown
    assert await _everything(registry, theirs) == before


async def _furnish(registry: Registry, tenant: str) -> None:
    """The names that the other tenant uses too, all stages of a window, one chunk in common."""
    for name in (*_NAMES, "live"):
        session = a_session(f"of-{name}", tenant, owner=_SECRET, salt_scope="shared", thawed_from="w1")
        await registry.add_session(session, _IDS_OF_B)
        asked = await registry.begin_turn(replace(_turn(tenant, name), author=_SECRET), NOW)
        assert asked is not None
        if name != "w2":  # whose answer is awaited
            ended = replace(
                asked,
                parent=None,
                parent_at=0,
                total_tokens=len(_IDS_OF_B),
                digest=digest(_IDS_OF_B),
                main=False,
            )
            await registry.end_turn(ended, TurnParts(_IDS_OF_B, (Message("m", {"of": _SECRET}),)))
            await registry.tag(replace(_tag(tenant, name), author=_SECRET))
    for name in _NAMES:
        window = a_window(
            name, tenant, session_id=f"of-{name}", owner=_SECRET, salt_scope="shared", cache_salt="salt"
        )
        await registry.begin_freeze(window, _IDS_OF_B, 0)
    first = a_window("w1", tenant, session_id="of-w1", snapshot_id=digest(_IDS_OF_B), cache_salt="salt")
    await registry.finish_freeze(first, stored("aa", _SECRET), LATER)


async def _everything(registry: Registry, tenant: str) -> list[Any]:
    seen: list[Any] = [await registry.windows(tenant, WindowQuery()), await registry.totals(tenant)]
    seen.append(await registry.failed_windows(tenant, 100))
    seen.append(await registry.sessions(tenant, SessionQuery(limit=100)))
    seen.append(await registry.tags(tenant))
    seen.append(await registry.snapshot(tenant, digest(_IDS_OF_B)))
    for name in _NAMES:
        seen += [await registry.session_tokens(tenant, f"of-{name}"), await registry.chunks(tenant, name)]
        seen += [await registry.turns(tenant, f"of-{name}", TurnQuery())]
        seen += [await registry.dependents(tenant, name), await registry.intents(tenant, name)]
    for name in ("w1", "live"):
        seen += [await registry.turn_tokens(_turn(tenant, name))]
        seen += [await registry.turn_messages(_turn(tenant, name))]
    return seen
