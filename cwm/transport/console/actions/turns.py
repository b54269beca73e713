"""What can be done to a turn."""

from __future__ import annotations

from secrets import token_hex
from typing import Final

from cwm.domain.errors import InvalidParameterError
from cwm.domain.names import MAX_DESCRIPTION_CHARS
from cwm.domain.visibility import Right
from cwm.services.windows.outlook import TurnOutlook
from cwm.transport.console.access.form import Form
from cwm.transport.console.actions.two_steps import READ, TALK, WRITE, Action, Field, Step, given, of_part
from cwm.transport.console.pages import link
from cwm.transport.console.turns.naming import source_of
from cwm.transport.console.views import Asked
from cwm.transport.console.wording import number

_SECTION: Final = "Conversations"
_TOOLS: Final = (
    "Going back does not undo what tools did: files, databases and messages that were sent stay as they are."
)


async def _branching(asked: Asked) -> Step:
    outlook = await _outlook(asked, Right.CONTENTS)
    return _step(
        f"Branch from turn {outlook.turn.number}",
        outlook,
        [
            f"A new conversation opens with exactly the {number(outlook.turn.total_tokens)} tokens and the messages up to this turn. Conversation {outlook.session.id} stays as it is.",
            "No engine is asked anything: the next turn reuses the KV that is still there. What tools did is not undone.",
        ],
        Field("session_id", "Id of the new conversation", f"branch_{token_hex(6)}", most=64),
    )


async def _branch(asked: Asked, sent: Form) -> str:
    session = await asked.services.branches.open(
        asked.principal, await _turn_id(asked, Right.CONTENTS), given(sent, "session_id")
    )
    return link("conversations", session.id, notice="branched")


async def _freezing(asked: Asked) -> Step:
    outlook = await _outlook(asked, Right.USE)
    name = f"{of_part(outlook.session.id, 100)}-turn-{outlook.turn.number}"
    return _step(
        f"Freeze turn {outlook.turn.number}",
        outlook,
        [
            f"The {number(outlook.turn.total_tokens)} tokens up to this turn are kept as a window, which can be thawed as often as you like. The conversation goes on as it is.",
            "The engine stores the KV that is missing, and every block is read back.",
        ],
        Field("name", "Name of the window", name),
        Field("description", "What it contains", most=MAX_DESCRIPTION_CHARS, required=False),
    )


async def _freeze(asked: Asked, sent: Form) -> str:
    outlook = await _outlook(asked, Right.USE)
    frozen = await asked.services.freeze(
        asked.principal,
        outlook.session.id,
        given(sent, "name"),
        sent.text("description"),
        turn_id=outlook.turn.id,
    )
    return link("windows", frozen.window.name, notice="frozen")


async def _tagging(asked: Asked) -> Step:
    outlook = await _outlook(asked, Right.USE)
    return _step(
        f"Tag turn {outlook.turn.number}",
        outlook,
        [
            "The turn can be gone back to by this name: tag:NAME stands wherever a turn is named.",
            "A tag keeps its turn and those before it, also when the conversation is deleted, but no KV: freeze the turn for that.",
        ],
        Field("tag", "Name of the tag", most=64, hint="letters, digits, '.', '_' and '-'"),
        Field("move", "Take the name from another turn that has it", kind="check", required=False),
    )


async def _tag(asked: Asked, sent: Form) -> str:
    turn_id = await _turn_id(asked, Right.USE)
    await asked.services.branches.tag(
        asked.principal, given(sent, "tag"), turn_id, move=bool(sent.text("move"))
    )
    return link("turns", turn_id, notice="tagged")


async def _untagging(asked: Asked) -> Step:
    outlook = await _outlook(asked, Right.USE)
    names = [tag.name for tag in outlook.tags]
    title = f"Remove a tag of turn {outlook.turn.number}"
    if not names:
        return _step(title, outlook, [], blocked="This turn has no tag.")
    facts = [
        "The turn stays as long as its conversation. Of a deleted conversation, turns that only this tag kept go with it."
    ]
    choices = [(name, name) for name in names]
    return _step(title, outlook, facts, Field("tag", "Tag", names[0], "choice", choices=choices))


async def _untag(asked: Asked, sent: Form) -> str:
    outlook = await _outlook(asked, Right.USE)
    name = sent.text("tag")
    if name not in {tag.name for tag in outlook.tags}:
        raise InvalidParameterError("tag is one of those that the turn has.", field="tag")
    await asked.services.branches.untag(asked.principal, name)
    return link("turns", outlook.turn.id, notice="untagged")


async def _reverting(asked: Asked) -> Step:
    outlook = await _outlook(asked, Right.USE)
    current, turn = outlook.current, outlook.turn
    if current is not None and current.id == turn.id:
        return _step(
            f"Go back to turn {turn.number}", outlook, [], blocked="The conversation is here already."
        )
    where = "" if current is None else f" It is at turn {current.number} now."
    return _step(
        f"Go back to turn {turn.number}",
        outlook,
        [
            f"Conversation {outlook.session.id} goes on from here.{where} The turns after it stay in the tree, and can be gone back to.",
            "A client that sends its whole conversation again moves it to where that conversation is: take this turn up there, too.",
            _TOOLS,
        ],
    )


async def _revert(asked: Asked, _: Form) -> str:
    turn_id = await _turn_id(asked, Right.USE)
    await asked.services.branches.revert(asked.principal, turn_id)
    return link("turns", turn_id, notice="reverted")


async def _deleting(asked: Asked) -> Step:
    outlook = await _outlook(asked, Right.USE)
    branch = await asked.services.outlook.branch(asked.principal, outlook.turn.id)
    blocked = ""
    if branch.holders:
        blocked = f"It is held by {', '.join(branch.holders[:20])}. Go back to another turn, or delete those, first."
    return _step(
        f"Delete the branch at turn {outlook.turn.number}",
        outlook,
        [
            f"This removes {number(branch.turns)} {'turn' if branch.turns == 1 else 'turns'} for ever: this one and all that came from it, {number(branch.tokens)} tokens with what was said in them.",
            "Conversations that were opened from them with a branch or a thaw stay.",
        ],
        seen=(branch.turns, branch.tokens, *branch.holders),
        blocked=blocked,
    )


async def _delete(asked: Asked, _: Form) -> str:
    outlook = await _outlook(asked, Right.USE)
    await asked.services.branches.remove(asked.principal, outlook.turn.id)
    return link("conversations", outlook.session.id, notice="turns-deleted")


async def _outlook(asked: Asked, right: Right) -> TurnOutlook:
    turn_id = source_of(asked.part("turn")).turn_id or ""
    return await asked.services.outlook.turn(asked.principal, turn_id, right)


async def _turn_id(asked: Asked, right: Right) -> str:
    """Of the turn, also where the address names it by a tag."""
    return (await _outlook(asked, right)).turn.id


def _step(
    title: str,
    outlook: TurnOutlook,
    facts: list[str],
    *fields: Field,
    seen: tuple[object, ...] = (),
    blocked: str = "",
) -> Step:
    session, turn, current = outlook.session, outlook.turn, outlook.current
    tags = [tag.name for tag in outlook.tags]
    state = (turn.id, turn.number, session.id, session.state.value, current and current.id, *tags, *seen)
    return Step(title, facts, state, link("turns", turn.id), fields, blocked)


TURNS: Final = {
    "branch": Action("Branch", _SECTION, READ | TALK, _branching, _branch, Right.CONTENTS),
    "freeze": Action("Freeze", _SECTION, WRITE, _freezing, _freeze, Right.USE, takes_time=True),
    "tag": Action("Tag", _SECTION, TALK, _tagging, _tag, Right.USE),
    "untag": Action("Remove a tag", _SECTION, TALK, _untagging, _untag, Right.USE, fits=lambda at: at[1]),
    "revert": Action(
        "Go back to it", _SECTION, TALK, _reverting, _revert, Right.USE, fits=lambda at: not at[0]
    ),
    "delete": Action("Delete", _SECTION, TALK, _deleting, _delete, Right.USE, is_destructive=True),
}
"""A turn is offered as whether its conversation is at it, and whether it has tags."""
