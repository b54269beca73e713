"""What can be done to a window."""

from __future__ import annotations

from datetime import datetime, timedelta
from secrets import token_hex
from typing import Final

from cwm.domain.errors import InvalidParameterError
from cwm.domain.names import MAX_DESCRIPTION_CHARS
from cwm.domain.notation import size
from cwm.domain.visibility import Right
from cwm.domain.window import Window
from cwm.transport.console.access.form import Form
from cwm.transport.console.actions.two_steps import READ, TALK, WRITE, Action, Field, Step, given, of_part
from cwm.transport.console.pages import link
from cwm.transport.console.views import Asked
from cwm.transport.console.wording import number, whole_time

_SECTION: Final = "Windows"
_NEVER: Final = "never"
_LONGER_DAYS: Final = {1: "a day more", 7: "a week more", 30: "30 days more", 365: "a year more"}
_SHOWN: Final = 20


async def _thawing(asked: Asked) -> Step:
    window = await asked.services.outlook.window(asked.principal, _name(asked), Right.CONTENTS)
    return _step(
        f"Thaw {window.name}",
        window,
        [
            f"A new conversation opens with exactly the {number(window.token_count)} tokens of this window, for {window.model}. The window stays as it is.",
            "The engine loads the KV that is stored and computes what was lost. Where the window has a canary, the restored KV is compared with it; KV that is wrong is deleted and computed anew.",
        ],
        Field(
            "session_id",
            "Id of the new conversation",
            f"thaw_{of_part(window.name, 46)}_{token_hex(6)}",
            most=64,
        ),
        Field(
            "accept_template",
            "Thaw it even if the model's chat template has changed",
            kind="check",
            required=False,
        ),
    )


async def _thaw(asked: Asked, sent: Form) -> str:
    thawed = await asked.services.thaw(
        asked.principal,
        _name(asked),
        given(sent, "session_id"),
        accept_template=bool(sent.text("accept_template")),
    )
    notice = "thawed-partly" if thawed.partial else "thawed"
    return link("conversations", thawed.session.id, notice=notice)


async def _cloning(asked: Asked) -> Step:
    window = await asked.services.outlook.window(asked.principal, _name(asked), Right.CONTENTS)
    return _step(
        f"Clone {window.name}",
        window,
        [
            "The same context gets a second name, with a lifetime and a description of its own. No block is copied.",
            "Blocks are freed when the last window that has them is deleted. The clone keeps the tags and the guarantee of this window, and never expires.",
        ],
        Field("name", "Name of the clone", f"{window.name[:123]}-copy"),
        Field("description", "What it is for", most=MAX_DESCRIPTION_CHARS, required=False),
    )


async def _clone(asked: Asked, sent: Form) -> str:
    clone = await asked.services.clone(
        asked.principal, _name(asked), given(sent, "name"), sent.text("description")
    )
    return link("windows", clone.name, notice="cloned")


async def _renaming(asked: Asked) -> Step:
    window = await asked.services.outlook.window(asked.principal, _name(asked), Right.USE)
    facts = ["Its KV does not move. Whoever asks for the old name finds no window any more."]
    if window.automatic:
        facts.append("The autosave made it, and deletes it in the end; with a name of yours it stays.")
    return _step(f"Rename {window.name}", window, facts, Field("name", "New name", window.name))


async def _rename(asked: Asked, sent: Form) -> str:
    window = await asked.services.rename(asked.principal, _name(asked), given(sent, "name"))
    return link("windows", window.name, notice="renamed")


async def _extending(asked: Asked) -> Step:
    window = await asked.services.outlook.window(asked.principal, _name(asked), Right.USE)
    if window.expires_at is None:
        return _step(f"Keep {window.name} longer", window, [], blocked="This window never expires.")
    times = {window.expires_at + timedelta(days=days): words for days, words in _LONGER_DAYS.items()}
    choices = [(at.isoformat(), f"until {whole_time(at)}, {words}") for at, words in times.items()]
    return _step(
        f"Keep {window.name} longer",
        window,
        [f"It would be deleted at {whole_time(window.expires_at)}, with the blocks that only it has."],
        Field("until", "Keep it", choices[1][0], "choice", choices=[*choices, (_NEVER, "for ever")]),
    )


async def _extend(asked: Asked, sent: Form) -> str:
    until = None if sent.text("until") == _NEVER else _moment(sent.text("until"))
    await asked.services.extend(asked.principal, _name(asked), until)
    return link("windows", _name(asked), notice="extended")


async def _deleting(asked: Asked) -> Step:
    outlook = await asked.services.outlook.deletion(asked.principal, _name(asked))
    window, dependents = outlook.window, outlook.dependents
    shared = max(window.block_count - outlook.blocks, 0)
    facts = [
        f"This frees {number(outlook.blocks)} {'block' if outlook.blocks == 1 else 'blocks'}, {size(outlook.size_bytes)}, in every tier that has them."
        + (f" {number(shared)} others stay, since windows or conversations share them." if shared else ""),
        f"The window cannot be thawed any more. Nothing of conversation {window.session_id} is deleted; if it is frozen and this is its last window, it becomes expired.",
    ]
    names = [*dependents.windows, *dependents.sessions]
    fields = []
    if dependents:
        more = len(names) - _SHOWN + dependents.others if len(names) > _SHOWN else dependents.others
        facts.append(
            f"These came from it, and stay: {', '.join(names[:_SHOWN])}"
            + (f"{' and ' if names else ''}{number(more)} more." if more else ".")
        )
        fields = [Field("force", "Delete it all the same", kind="check")]
    return _step(
        f"Delete {window.name}", window, facts, *fields, seen=(outlook.blocks, *names, dependents.others)
    )


async def _delete(asked: Asked, sent: Form) -> str:
    await asked.services.delete(asked.principal, _name(asked), force=bool(sent.text("force")))
    return link("windows", notice="window-deleted")


def _name(asked: Asked) -> str:
    return asked.part("window_name")


def _moment(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise InvalidParameterError("until is one of the times on the page.", field="until")
    return at


def _step(
    title: str,
    window: Window,
    facts: list[str],
    *fields: Field,
    seen: tuple[object, ...] = (),
    blocked: str = "",
) -> Step:
    state = (window.name, window.created_at, window.updated_at, window.durability.value, window.expires_at)
    return Step(title, facts, (*state, *seen), link("windows", window.name), fields, blocked)


def _expires(window: Window) -> bool:
    return window.expires_at is not None


WINDOWS: Final = {
    "thaw": Action(
        "Thaw", _SECTION, READ | TALK, _thawing, _thaw, Right.CONTENTS, takes_time=True
    ),
    "clone": Action("Clone", _SECTION, WRITE, _cloning, _clone, Right.CONTENTS),
    "rename": Action("Rename", _SECTION, WRITE, _renaming, _rename, Right.USE),
    "extend": Action("Keep longer", _SECTION, WRITE, _extending, _extend, Right.USE, fits=_expires),
    "delete": Action(
        "Delete", _SECTION, WRITE, _deleting, _delete, Right.DELETE, is_destructive=True, takes_time=True
    ),
}  # fmt: skip
