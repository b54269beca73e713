"""Types of settings that list hosts or origins; environment variables separate them with commas."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator

from cwm.domain.web_origin import origin_of

_HOST: Final = re.compile(r"(?:\*\.)?[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?|[0-9a-f]*+:[0-9a-f:.]*")


def split(value: Any) -> Any:
    """The parts of a text between commas; any other value as it is."""
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _host(value: str) -> str:
    host = value.lower().strip("[]")
    if not _HOST.fullmatch(host):
        raise ValueError(
            "must be host names without scheme or port, such as cwm.example.com or *.example.com"
        )
    return host


def _origin(value: str) -> str:
    origin = origin_of(value.removesuffix("/"))
    if origin is None:
        raise ValueError("must be http or https origins without a path, such as https://app.example.com")
    return origin


Names = Annotated[tuple[Annotated[str, AfterValidator(_host)], ...], BeforeValidator(split)]
Origins = Annotated[tuple[Annotated[str, AfterValidator(_origin)], ...], BeforeValidator(split)]
