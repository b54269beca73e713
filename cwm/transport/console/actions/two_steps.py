"""An action in two steps, without script: a page that says what will follow, and the form on it that does it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from cwm.domain.access import AccessScope
from cwm.domain.errors import CwmError, ErrorKind, InvalidParameterError, SecurityError
from cwm.domain.principal import Principal
from cwm.domain.visibility import Right, may
from cwm.transport.console.access import form
from cwm.transport.console.access.form import LOOKS_ONLY, Form
from cwm.transport.console.pages import Page, Redirect
from cwm.transport.console.views import Asked
from cwm.transport.http.errors import STATUS
from cwm.transport.http.request_keys import LOOK_ONLY

READ: Final = frozenset({AccessScope.WINDOWS_READ})
WRITE: Final = frozenset({AccessScope.WINDOWS_WRITE})
TALK: Final = frozenset({AccessScope.SESSIONS_WRITE})
ADMIN: Final = frozenset({AccessScope.ADMIN})

_DIGEST_CHARS: Final = 16
_TO_CORRECT: Final = frozenset({ErrorKind.INVALID, ErrorKind.CONFLICT})


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the form. ``kind``: text, check, choice (one of ``choices``) or boxes (any of them); these are values with their labels."""

    name: str
    label: str
    value: str = ""
    kind: str = "text"
    hint: str = ""
    most: int = 128
    required: bool = True
    choices: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """What the page says. ``seen``: all that it rests on; when that changes, the page is shown again. ``blocked``: why it cannot be done now."""

    title: str
    facts: Sequence[str]
    seen: Sequence[object]
    back: str
    fields: Sequence[Field] = ()
    blocked: str = ""

    @property
    def revision(self) -> str:
        return hashlib.sha256(repr([*map(_plain, self.seen)]).encode()).hexdigest()[:_DIGEST_CHARS]


Prepare: TypeAlias = Callable[[Asked], Awaitable[Step]]
Perform: TypeAlias = Callable[[Asked, Form], Awaitable[str | Page]]
"""Does it, and returns the address of the result, or the page of one that is shown once."""


@dataclass(frozen=True, slots=True)
class Action:
    """``verb`` is what its link and its button say. Links are for who has the ``scopes`` and the ``right`` on a thing that it ``fits``."""

    verb: str
    section: str
    scopes: frozenset[AccessScope]
    prepare: Prepare
    perform: Perform
    right: Right = Right.RECORD
    is_destructive: bool = False
    takes_time: bool = False
    fits: Callable[[Any], bool] = lambda _: True

    async def __call__(self, asked: Asked) -> Page | Redirect:
        """The page, or what came of the form on it. CWM-9002 without the scopes, and for a form that no page of this gateway sent."""
        if LOOK_ONLY in asked.request.scope:
            raise SecurityError(LOOKS_ONLY, reason="look_only")
        if asked.request.method != "POST":
            asked.principal.require(self.scopes)
            return self._page(asked, await self.prepare(asked))
        sent = await form.read(asked.request)
        form.check(asked.request, sent)
        asked.principal.require(self.scopes)
        step = await self.prepare(asked)
        if sent.text("revision") != step.revision or step.blocked:
            return self._page(asked, step, sent, 409)
        try:
            result = await self.perform(asked, sent)
        except CwmError as error:
            await asked.services.journal.injection(asked.principal, f"console: {self.verb}", error)
            if error.kind not in _TO_CORRECT:
                raise
            return self._page(asked, await self.prepare(asked), sent, STATUS[error.kind], error)
        return result if isinstance(result, Page) else Redirect(result)

    def offered_to(self, principal: Principal, circle: str | None, thing: Any) -> bool:
        is_allowed = self.scopes <= principal.scopes and (
            circle is None or may(principal, circle, self.right)
        )
        return is_allowed and self.fits(thing)

    def _page(
        self,
        asked: Asked,
        step: Step,
        sent: Form | None = None,
        status: int = 200,
        error: CwmError | None = None,
    ) -> Page:
        return Page(
            "confirm.html",
            {
                "action": self,
                "step": step,
                "here": quote(asked.request.url.path, safe="/:@"),
                "section": self.section,
                "values": _values(step.fields, sent),
                "is_stale": sent is not None and error is None,
                "error": error,
            },
            status,
        )


@dataclass(frozen=True, slots=True)
class Link:
    """An action on the page of what it is done to."""

    verb: str
    address: str
    is_destructive: bool


def links(
    actions: Mapping[str, Action],
    principal: Principal,
    address: str,
    thing: Any = None,
    circle: str | None = None,
) -> list[Link]:
    """The actions that the principal may do to the thing at ``address``. Who may is decided again by the service."""
    return [
        Link(action.verb, f"{address}/{name}", action.is_destructive)
        for name, action in actions.items()
        if action.offered_to(principal, circle, thing)
    ]


def of_part(value: str, most: int) -> str:
    """As much of a name as another one can begin with."""
    return re.sub(r"[^a-zA-Z0-9_-]", "-", value)[:most]


def given(sent: Form, name: str) -> str:
    """CWM-1003 if it is empty: an id that is made on the way would be another one the second time."""
    if value := sent.text(name):
        return value
    raise InvalidParameterError(f"{name} is needed.", field=name)


def _values(fields: Sequence[Field], sent: Form | None) -> dict[str, Any]:
    """What the fields show: what was sent before, else what they propose."""
    if sent is None:
        return {each.name: [] if each.kind == "boxes" else each.value for each in fields}
    return {
        each.name: sent.texts(each.name) if each.kind == "boxes" else sent.text(each.name) for each in fields
    }


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
