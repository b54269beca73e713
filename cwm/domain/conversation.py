"""Conversations of clients that name no session of CWM: what they call themselves, and what was said in them so far."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from cwm.domain.names import SESSION_ID_PATTERN
from cwm.domain.turn import Message

_ID: Final = re.compile(SESSION_ID_PATTERN)
_BEGINNING_CHARS: Final = 47
_DIGEST_CHARS: Final = 16
_READ_CHARS: Final = 2**20
_SYSTEM: Final = ("system", "developer")
_MONTH: Final = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
# Many clients put today's date in front of the conversation.
DATES: Final = re.compile(
    rf"\d{{4}}-\d\d-\d\d|\d{{1,2}}[/.]\d{{1,2}}[/.]\d{{2,4}}|{_MONTH}\.? \d{{1,2}},? \d{{4}}|\d{{1,2}}\.? {_MONTH}\.? \d{{4}}"
    r"|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*\b|\d{1,2}:\d\d(?::\d\d)?(?:\.\d+)?"
)


class Capture(StrEnum):
    """Which requests without a session id are recorded: all, those of clients that name their conversation, none."""

    ALL = "all"
    NAMED = "named"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class CapturePolicies:
    """``by_tenant`` replaces ``default``; None: all for a single user, else those of clients that name their conversation.

    ``headers`` name conversations beside those of the clients that CWM knows. ``fixed_ids`` are hints: each stands for many conversations of
    one configuration. ``by_cache_key``: so is a ``prompt_cache_key``. What has different hints is never one conversation.
    ``unstored`` is off where a request with ``store: false`` that names no session of CWM is not recorded.
    """

    default: Capture | None = None
    by_tenant: Mapping[str, Capture] = field(default_factory=dict)
    headers: tuple[str, ...] = ()
    unstored: Capture = Capture.ALL
    fixed_ids: tuple[str, ...] = ()
    by_cache_key: bool = False

    def fixed(self, session_id: str | None, conversation: ClientConversation | None) -> str | None:
        """The id of a request, if it is a hint."""
        own_id = session_id or (None if conversation is None else conversation.id)
        return own_id if own_id in self.fixed_ids else None

    def of(self, tenant: str, *, single_user: bool) -> Capture:
        default = self.default or (Capture.ALL if single_user else Capture.NAMED)
        return self.by_tenant.get(tenant, default)


@dataclass(frozen=True, slots=True)
class ClientConversation:
    """A conversation by its client's own id; ``parent`` is that of the conversation that a sub-agent works for.

    ``compactions``: how many summaries of it the client has made; None if it does not say. ``aside``: the client says that its
    request is no part of the conversation, for example because it makes a summary.
    """

    id: str
    parent: str | None = None
    compactions: int | None = None
    aside: bool = False

    @property
    def session_id(self) -> str:
        return _session_id(self.id)

    @property
    def parent_session_id(self) -> str | None:
        return None if self.parent is None else _session_id(self.parent)


def session_id_beside(session_id: str, *reasons: str) -> str:
    """Another id for the same conversation, where this one is not to be had: the same for the same reasons."""
    return f"{session_id[:_BEGINNING_CHARS]}_{_digest(session_id, *reasons)[:_DIGEST_CHARS]}"


def is_for(session_id: str, wanted_id: str) -> bool:
    """Whether a session has the wanted id, or one beside it."""
    return session_id == wanted_id or session_id.startswith(f"{wanted_id[:_BEGINNING_CHARS]}_")


def cache_key_of(body: bytes) -> str | None:
    """The ``prompt_cache_key`` of a request's body, which is a JSON object."""
    if b'"prompt_cache_key"' in body:
        with suppress(RecursionError):
            key = json.loads(body).get("prompt_cache_key")
            return key if isinstance(key, str) else None
    return None


def opening(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages up to the first question."""
    first = (at for at, message in enumerate(messages, 1) if message.content.get("role") not in _SYSTEM)
    return messages[: next(first, len(messages))]


def chains(messages: Sequence[Message], *hints: str) -> list[str]:
    """A digest of what was said up to each message, under the same hints. Dates in the opening do not count; all its text is read."""
    chain, values, opening_count = chained("", *hints), [], len(opening(messages))
    for index, message in enumerate(messages):
        chain = chained(chain, _steady(message.content) if index < opening_count else message.digest)
        values.append(chain)
    return values


def chained(chain: str, *digests: str) -> str:
    """The chain after more messages, by their digests."""
    for digest in digests:
        chain = _digest(chain, digest)
    return chain


def without_dates(text: str) -> str:
    """A text without dates and times in its first million characters: a search holds up all other threads as long as it takes."""
    return DATES.sub("", text[:_READ_CHARS]) + text[_READ_CHARS:]


def _steady(content: Mapping[str, Any]) -> str:
    return _digest(*map(without_dates, _texts(content)))


def _texts(content: Mapping[str, Any]) -> list[str]:
    inner = content.get("content")
    parts = inner if isinstance(inner, list) else [inner]
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return [str(content.get("role")), *(text for text in texts if isinstance(text, str))]


def _session_id(client_id: str) -> str:
    return client_id if _ID.fullmatch(client_id) else f"client_{_digest(client_id)[:24]}"


def _digest(*parts: str) -> str:
    state = hashlib.sha256()
    for part in parts:
        encoded = part.encode(errors="surrogatepass")
        state.update(b"%d:" % len(encoded) + encoded)
    return state.hexdigest()[:32]
