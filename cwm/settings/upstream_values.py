"""Types of an upstream's fields. Their error messages never repeat the value."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, StringConstraints, ValidationInfo

from cwm.settings.variables import Variables

_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?")
_THING_NAME: Final = r"^[A-Za-z0-9_.-]{1,64}$"
# Headers that HTTP and MCP set themselves: a fixed value would break the connection.
_TRANSPORTS_OWN: Final = frozenset(
    {"accept", "connection", "content-length", "content-type", "host", "last-event-id", "transfer-encoding"}
)


def _url(value: str) -> str:
    try:
        parts = urlsplit(value)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    else:
        if parts.username is not None or parts.password is not None:
            raise ValueError("must not contain a user or a password; send a header")
    if not valid or any(character.isspace() or not character.isprintable() for character in value):
        raise ValueError("must be an http:// or https:// URL")
    return value


def _command(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if len(value.split()) > 1:
        raise ValueError("must be a program; with arguments, write a list, such as [npx, -y, some-server]")
    return [value]


def _program(value: list[str]) -> list[str]:
    if not value or not value[0]:
        raise ValueError("must start with a program")
    return value


def _filled(value: str, info: ValidationInfo) -> str:
    assert isinstance(info.context, Variables)
    return info.context.filled(value)


def _environment(variables: dict[str, str]) -> dict[str, str]:
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise ValueError("contains something that cannot be an environment variable")
    return variables


def _headers(headers: dict[str, str]) -> dict[str, str]:
    names: set[str] = set()
    for name in headers:
        lower = name.lower()
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError("contains something that cannot be a header name")
        if lower in _TRANSPORTS_OWN or lower.startswith("mcp-"):
            raise ValueError(f"'{name}' is set by the connection itself")
        if lower in names:
            raise ValueError(f"'{name}' stands here twice")
        names.add(lower)
    return headers


def _header_value(value: str) -> str:
    if not _HEADER_VALUE.fullmatch(value):
        raise ValueError("must be one line of ASCII without a space at either end, and not empty")
    return value


Text = Annotated[str, StringConstraints(min_length=1)]
Pattern = Annotated[str, StringConstraints(min_length=1)]
ThingName = Annotated[str, StringConstraints(pattern=_THING_NAME)]
Url = Annotated[str, AfterValidator(_url)]
Command = Annotated[list[str], BeforeValidator(_command), AfterValidator(_program)]
Secret = Annotated[Text, AfterValidator(_filled)]
Environment = Annotated[dict[str, Annotated[str, AfterValidator(_filled)]], AfterValidator(_environment)]
Headers = Annotated[
    dict[str, Annotated[str, AfterValidator(_filled), AfterValidator(_header_value)]],
    AfterValidator(_headers),
]
