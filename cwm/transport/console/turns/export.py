"""A transcript as a file: to read, or as the messages of an API. What `cwm turns show` prints."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Final

from cwm.domain.errors import InvalidParameterError
from cwm.domain.transcripts import anthropic, plain, warning
from cwm.domain.turn import TurnSource
from cwm.services.turns.reading.history import Transcript
from cwm.transport.console.pages import Download
from cwm.transport.console.turns.naming import source_of
from cwm.transport.console.views import Asked

_FORMATS: Final = ("text", "openai", "anthropic")


async def export_turn(asked: Asked) -> Download:
    shown = await _shown(asked, source_of(asked.part("turn")))
    return _file(asked, shown, f"{shown.turn.session_id}.turn-{shown.turn.number}")


async def export_conversation(asked: Asked) -> Download:
    session_id = asked.part("session_id")
    return _file(asked, await _shown(asked, TurnSource(session_id=session_id)), session_id)


async def export_window(asked: Asked) -> Download:
    name = asked.part("window_name")
    return _file(asked, await _shown(asked, TurnSource(window_name=name)), name)


async def _shown(asked: Asked, of: TurnSource) -> Transcript:
    if _format(asked) not in _FORMATS:
        raise InvalidParameterError(f"as is one of {', '.join(_FORMATS)}.", field="as")
    return await asked.services.history.show(asked.principal, of)


def _file(asked: Asked, shown: Transcript, name: str) -> Download:
    """Its name is of ids and names, which have letters, digits, hyphens and underscores only."""
    message_format = _format(asked)
    if message_format == "text":
        return Download(f"{name}.txt", "text/plain; charset=utf-8", partial(_text, shown))
    document = partial(_document, shown, message_format)
    return Download(f"{name}.{message_format}.json", "application/json", document)


def _format(asked: Asked) -> str:
    return asked.text("as") or "text"


def _text(shown: Transcript) -> str:
    missing = warning(shown.messages)
    return plain(_contents(shown)) + ("" if missing is None else f"{missing}\n")


def _document(shown: Transcript, message_format: str) -> str:
    contents = _contents(shown)
    document: dict[str, Any] = {"messages": contents}
    if message_format == "anthropic":
        system, messages = anthropic(contents)
        document = {"system": system, "messages": messages}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _contents(shown: Transcript) -> list[Any]:
    return [message.content for message in shown.messages if message.content]
