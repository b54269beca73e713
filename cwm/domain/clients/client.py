"""What can be known of a client: how it is connected, names its conversations, and breaks the cache."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias

from cwm.domain.clients.habit import Habit
from cwm.domain.conversation import ClientConversation

KEY_VARIABLE: Final = "CWM_API_KEY"
"""The environment variable that clients, like CWM's own commands, read the key from."""
_ANSWER_SHARE: Final = 4
_MOST_ANSWER_TOKENS: Final = 32_000
_ANY_NAME: Final = "{}"


class Protocol(StrEnum):
    CHAT = "/v1/chat/completions"
    MESSAGES = "/v1/messages"
    RESPONSES = "/v1/responses"


@dataclass(frozen=True, slots=True)
class Access:
    """A gateway as clients see it. ``keyed``: it asks for a key, which is in ``CWM_API_KEY``.

    ``context_tokens``: the length of the model's context, for clients that must be given it; None if it is not known.
    """

    url: str
    model: str
    keyed: bool = False
    context_tokens: int | None = None

    @property
    def key(self) -> str:
        """For a shell."""
        return f"${KEY_VARIABLE}" if self.keyed else "none"

    @property
    def pasted_key(self) -> str:
        """For a form, or a file that refers to no variables."""
        return f"<value of {KEY_VARIABLE}>" if self.keyed else "none"

    @property
    def answer_tokens(self) -> int | None:
        """The part of the context that a client should leave for one answer."""
        if self.context_tokens is None:
            return None
        return min(self.context_tokens // _ANSWER_SHARE, _MOST_ANSWER_TOKENS)


@dataclass(frozen=True, slots=True)
class Part:
    """Lines for one place: a shell, a program or a file. ``note`` says which."""

    note: str
    text: str


@dataclass(frozen=True, slots=True)
class OwnFile:
    """A file of the client that CWM can write, JSON or TOML by its name: each of ``texts`` is all of it where it has nothing else.

    ``path`` is below the folder of the project, or below the user's folder ``home``, which the variable ``home_variable`` may replace.
    """

    path: str
    texts: tuple[Callable[[Access], str], ...]
    home: str = ""
    home_variable: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """Text that a client writes anew by itself, from its ``beginning`` to the first of its ``ends``."""

    habit: Habit
    beginning: str
    ends: tuple[str, ...]


Headers: TypeAlias = Mapping[str, str]
"""Of a request, by lower-case name."""
Parts: TypeAlias = Callable[[Access], list[Part]]


@dataclass(frozen=True, slots=True)
class Client:
    """A program that uses a gateway. Fields that do not apply to it stay empty.

    To connect it: ``name`` is that of ``cwm connect``. ``llm`` speaks ``protocol``; without ``llm`` or ``mcp`` the client cannot be connected
    in this way. ``files`` are what ``--write`` writes.

    Its conversations: it sends ``headers``, or its configuration has it send them. ``conversation`` reads those that no other client sends;
    the others are read for all clients alike. With a tool call it gives the id of the conversation in ``conversation_meta``, or the id of the
    call in ``call_meta``, both in ``_meta``. It calls a tool of CWM by ``tool_name``, with ``{}`` for CWM's own name.
    A user's message that has all words of one group of ``aside_words`` is no part of the conversation; one with the words ``summary`` stands in
    place of what was said before.

    Its habits: ``preamble`` matches what it puts before the system text and a model does not need, ``blocks`` are written anew by
    itself, ``preface`` begins a message of nothing but such text, a message with one of ``last_words`` stands behind all that was said in each request, ``switches`` are its own against a habit. It alone has ``own_habits``, so their switch is right whatever the user agent says.

    How to go on with a conversation: its ``User-Agent`` has one of ``user_agents`` at its beginning, in lower case. ``resume`` is the
    command that goes on with the newest one, ``ask`` the code that sends only what is new, for a value of CWM-Continue and a model.
    """

    name: str
    title: str
    protocol: Protocol | None = None
    llm: Parts | None = None
    mcp: Parts | None = None
    files: tuple[OwnFile, ...] = ()
    headers: tuple[str, ...] = ()
    conversation: Callable[[Headers], ClientConversation | None] | None = None
    conversation_meta: tuple[str, ...] = ()
    call_meta: str = ""
    tool_name: str = _ANY_NAME
    aside_words: tuple[tuple[str, ...], ...] = ()
    summary: str = ""
    preamble: re.Pattern[str] | None = None
    blocks: tuple[Block, ...] = ()
    preface: str = ""
    last_words: tuple[str, ...] = ()
    switches: Mapping[Habit, str] = field(default_factory=dict)
    own_habits: frozenset[Habit] = frozenset()
    user_agents: tuple[str, ...] = ()
    resume: str = ""
    ask: Callable[[str, str], str] | None = None

    def is_behind(self, user_agent: str) -> bool:
        """Whether a request with this ``User-Agent`` is of the client, as far as that says."""
        return bool(self.user_agents) and user_agent.lower().startswith(self.user_agents)


def json_text(value: Any) -> str:
    return json.dumps(value, indent=2)


def servers_text(access: Access, key: str, address: Mapping[str, Any], variable: str) -> str:
    """An MCP server ``cwm`` under ``key``. ``variable``: how the client's file refers to the variable with the key."""
    headers = {"headers": {"Authorization": f"Bearer {variable}"}} if access.keyed else {}
    return json_text({key: {"cwm": {**address, **headers}}})


def python_key(access: Access) -> str:
    return f'os.environ["{KEY_VARIABLE}"]' if access.keyed else '"none"'
