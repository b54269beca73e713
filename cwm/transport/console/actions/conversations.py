"""What can be done to a conversation."""

from __future__ import annotations

from typing import Final

from cwm.domain.names import MAX_DESCRIPTION_CHARS
from cwm.domain.session import FREEZABLE, LIVE, Session, SessionState
from cwm.domain.visibility import Right
from cwm.domain.window import Retention
from cwm.services.windows.outlook import SessionOutlook
from cwm.transport.console.access.form import Form
from cwm.transport.console.actions.two_steps import ADMIN, TALK, WRITE, Action, Field, Step, given, of_part
from cwm.transport.console.pages import link
from cwm.transport.console.views import Asked
from cwm.transport.console.wording import number

_SECTION: Final = "Conversations"
_GUARANTEES: Final = (
    (Retention.GUARANTEED.value, "guaranteed: pinned, stored again if lost, counted against the quota"),
    (Retention.BEST_EFFORT.value, "best effort: blocks may be lost, the tokens never are"),
)


async def _freezing(asked: Asked) -> Step:
    outlook = await _outlook(asked, Right.USE)
    session, current = outlook.session, outlook.current
    title = f"Freeze {session.id}"
    if session.state not in FREEZABLE or current is None:
        why = f"It is {session.state}." if current else "It has no turn yet: there is nothing to freeze."
        return _step(title, outlook, [], blocked=why)
    return _step(
        title,
        outlook,
        [
            f"The {number(current.total_tokens)} tokens up to turn {current.number} are kept as a window, which can be thawed as often as you like.",
            "A turn in flight is waited for. The engine stores the KV that is missing, and every block is read back.",
        ],
        Field("name", "Name of the window", f"{of_part(session.id, 100)}-turn-{current.number}"),
        Field("description", "What it contains", most=MAX_DESCRIPTION_CHARS, required=False),
        Field("retention", "Its KV is", Retention.GUARANTEED.value, "choice", choices=_GUARANTEES),
        Field(
            "keep", "The conversation goes on; else it takes no more turns", "yes", "check", required=False
        ),
    )


async def _freeze(asked: Asked, sent: Form) -> str:
    retention = (
        Retention.BEST_EFFORT if sent.text("retention") == Retention.BEST_EFFORT else Retention.GUARANTEED
    )
    frozen = await asked.services.freeze(
        asked.principal,
        _id(asked),
        given(sent, "name"),
        sent.text("description"),
        retention=retention,
        keep_session=bool(sent.text("keep")),
    )
    return link("windows", frozen.window.name, notice="frozen")


async def _unfreezing(asked: Asked) -> Step:
    outlook = await _outlook(asked, Right.USE)
    session = outlook.session
    blocked = "" if _is_at_rest(session) else f"It is {session.state}: it takes turns already."
    facts = [f"Conversation {session.id} takes turns again, under its own id. Its windows stay as they are."]
    return _step(f"Unfreeze {session.id}", outlook, facts, blocked=blocked)


async def _unfreeze(asked: Asked, _: Form) -> str:
    session = await asked.services.branches.unfreeze(asked.principal, _id(asked))
    return link("conversations", session.id, notice="unfrozen")


async def _moving(asked: Asked) -> Step:
    outlook = await _outlook(asked, Right.RECORD)
    session = outlook.session
    title = f"Move {session.id}"
    if session.state not in LIVE:
        return _step(
            title, outlook, [], blocked=f"It is {session.state}: only one that takes turns can move."
        )
    others = [
        each.name
        for each in await asked.services.survey(asked.principal)
        if each.name and each.name != session.engine and each.is_up and each.draining_since is None
    ]
    if not others:
        return _step(title, outlook, [], blocked="There is no other engine that could take it.")
    return _step(
        title,
        outlook,
        [
            f"It is on {session.engine or 'no engine yet'}. What is missing of the KV of its {number(session.token_count)} tokens is stored, loaded by the other engine, and compared there; only then it goes there.",
            "Turns wait for a moment. If anything fails, it stays where it is.",
        ],
        Field("engine", "To", others[0], "choice", choices=[(name, name) for name in others]),
        seen=tuple(others),
    )


async def _move(asked: Asked, sent: Form) -> str:
    moved = await asked.services.move(asked.principal, _id(asked), given(sent, "engine"))
    return link("conversations", moved.session_id, notice="moved")


async def _deleting(asked: Asked) -> Step:
    outlook = await _outlook(asked, Right.DELETE)
    session, tree = outlook.session, outlook.tree
    windows = [each.name for each in await asked.services.browse.windows_of(asked.principal, session.id)]
    blocked = ""
    if session.state is SessionState.FROZEN:
        blocked = "It is frozen: delete its windows first, or unfreeze it."
    facts = [
        f"This frees {number(tree.turns)} {'turn' if tree.turns == 1 else 'turns'} with {number(tree.tokens)} tokens and what was said in them, and the blocks in the cache that nothing else refers to. It cannot be undone.",
        "Turns that have a tag of somebody's stay, with those before them; so do conversations that branched off.",
    ]
    if windows:
        more = f" and {number(len(windows) - 20)} more" if len(windows) > 20 else ""
        facts.append(f"Its windows stay: {', '.join(windows[:20])}{more}.")
    return _step(
        f"Delete {session.id}", outlook, facts, seen=(tree.turns, tree.tokens, *windows), blocked=blocked
    )


async def _delete(asked: Asked, _: Form) -> str:
    await asked.services.end_session(asked.principal, _id(asked))
    return link("conversations", notice="conversation-deleted")


def _id(asked: Asked) -> str:
    return asked.part("session_id")


async def _outlook(asked: Asked, right: Right) -> SessionOutlook:
    return await asked.services.outlook.session(asked.principal, _id(asked), right)


def _step(
    title: str,
    outlook: SessionOutlook,
    facts: list[str],
    *fields: Field,
    seen: tuple[object, ...] = (),
    blocked: str = "",
) -> Step:
    session, current = outlook.session, outlook.current
    state = (session.id, session.created_at, session.state.value, session.revision, session.engine)
    return Step(
        title,
        facts,
        (*state, current and current.id, *seen),
        link("conversations", session.id),
        fields,
        blocked,
    )


def _is_at_rest(session: Session) -> bool:
    return session.state in {SessionState.FROZEN, SessionState.EXPIRED}


CONVERSATIONS: Final = {
    "freeze": Action(
        "Freeze", _SECTION, WRITE, _freezing, _freeze, Right.USE, takes_time=True,
        fits=lambda session: session.state in FREEZABLE and session.token_count > 0,
    ),
    "unfreeze": Action("Unfreeze", _SECTION, TALK, _unfreezing, _unfreeze, Right.USE, fits=_is_at_rest),
    "move": Action(
        "Move", _SECTION, ADMIN, _moving, _move, takes_time=True,
        fits=lambda session: session.engine is not None and session.state in LIVE,
    ),
    "delete": Action(
        "Delete", _SECTION, TALK, _deleting, _delete, Right.DELETE, is_destructive=True, takes_time=True,
        fits=lambda session: session.state is not SessionState.FROZEN,
    ),
}  # fmt: skip
