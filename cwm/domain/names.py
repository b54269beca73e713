"""The identifiers that people choose, and their syntax."""

from __future__ import annotations

import re
from typing import Final

from cwm.domain.errors import InvalidParameterError, InvalidSessionIdError, InvalidWindowNameError

SESSION_ID_PATTERN: Final = r"^[a-zA-Z0-9_-]{1,64}$"
WINDOW_NAME_PATTERN: Final = r"^[a-zA-Z0-9_-]{1,128}$"
TAG_PATTERN: Final = r"^[a-zA-Z0-9_-]{1,32}$"
TURN_TAG_PATTERN: Final = r"^[a-zA-Z0-9._-]{1,64}$"
TURN_PATTERN: Final = r"^(tag:)?[a-zA-Z0-9._-]{1,64}$"
"""The id of a turn, or ``tag:NAME``."""
MAX_TAGS: Final = 10
MAX_DESCRIPTION_CHARS: Final = 1000

_SESSION_ID = re.compile(SESSION_ID_PATTERN[1:-1])
_WINDOW_NAME = re.compile(WINDOW_NAME_PATTERN[1:-1])
_TAG = re.compile(TAG_PATTERN[1:-1])
_TURN_TAG = re.compile(TURN_TAG_PATTERN[1:-1])


def require_session_id(value: str) -> str:
    """Return ``value`` or raise CWM-1001."""
    if not _SESSION_ID.fullmatch(value):
        raise InvalidSessionIdError(
            "A session id is 1 to 64 letters, digits, '_' or '-'.", received_chars=len(value)
        ).refusing(value)
    return value


def require_window_name(value: str) -> str:
    """Return ``value`` or raise CWM-1002."""
    if not _WINDOW_NAME.fullmatch(value):
        raise InvalidWindowNameError(
            "A window name is 1 to 128 letters, digits, '_' or '-'.", received_chars=len(value)
        ).refusing(value)
    return value


def require_tags(values: list[str]) -> list[str]:
    """Return ``values`` without duplicates, in their order, or raise CWM-1003."""
    distinct = list(dict.fromkeys(values))
    if len(distinct) > MAX_TAGS or not all(_TAG.fullmatch(tag) for tag in distinct):
        raise InvalidParameterError(
            f"At most {MAX_TAGS} tags, each 1 to 32 letters, digits, '_' or '-'.", field="tags"
        ).refusing(" ".join(tag for tag in distinct if not _TAG.fullmatch(tag)))
    return distinct


def require_turn_tag(value: str) -> str:
    """Return ``value`` or raise CWM-1003."""
    if not _TURN_TAG.fullmatch(value):
        raise InvalidParameterError(
            "The name of a tag is 1 to 64 letters, digits, '.', '_' or '-'.", field="tag"
        ).refusing(value)
    return value


def is_storable(value: str) -> bool:
    """Whether every database can store the text: it has no NUL and no half of a surrogate pair."""
    return "\x00" not in value and not any("\ud800" <= character <= "\udfff" for character in value)


def require_description(value: str) -> str:
    """Return ``value`` or raise CWM-1003."""
    if len(value) > MAX_DESCRIPTION_CHARS:
        raise InvalidParameterError(
            f"A description has at most {MAX_DESCRIPTION_CHARS} characters.",
            field="description",
            received_chars=len(value),
        )
    if not is_storable(value):
        raise InvalidParameterError(
            "A description must be text without NUL characters or halves of surrogate pairs.",
            field="description",
        )
    return value
