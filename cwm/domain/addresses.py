"""Takes the addresses and paths of an installation out of what callers are told."""

from __future__ import annotations

import re
from typing import Any, Final

from cwm.domain.web_origin import is_public

HIDDEN: Final = "[hidden]"

_TEXT: Final = r"[^\\\s\"'<>(){}`]"
_LAST: Final = r"[^\\\s\"'<>(){}`.,;:!?]"
_URL: Final = rf"[a-zA-Z][a-zA-Z0-9+.-]{{1,15}}://(?P<url>{_TEXT}{{0,2000}}{_LAST})"
_HOST: Final = r"(?:\[[0-9a-fA-F:.]{2,45}\](?::[0-9]{1,5})?|(?<![\w.])[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?::[0-9]{1,5})?(?![\w.]*\w)|(?<![\w.@-])(?:localhost|[\w-]{1,63}(?:\.[\w-]{1,63}){1,10}):[0-9]{2,5}\b)"
_PATH: Final = rf"(?<![\w/.:])/(?:home|root|opt|srv|var|tmp|etc|usr|mnt|data|models?|workspace|run|app|Users)/{_TEXT}{{0,1000}}{_LAST}"
_ADDRESS: Final = re.compile(rf"(?P<at> at)?(?P<space> ?)(?:{_URL}|{_HOST}|{_PATH})")
_INNER: Final = (".local", ".localhost", ".internal", ".lan", ".svc", ".invalid")


def without_addresses(text: str) -> str:
    """``text`` with no URL, address of a host or path of a file. "X at <address>" becomes "X"."""
    return _ADDRESS.sub(lambda match: "" if match["at"] else f"{match['space']}{HIDDEN}", text)


def without_inner_addresses(text: str) -> str:
    """The same for the words of an engine or an upstream, in which URLs at public names and addresses are the caller's own and stay."""
    return _ADDRESS.sub(
        lambda match: match[0] if _is_outside(match) else f"{match['at'] or ''}{match['space']}{HIDDEN}", text
    )


def without_addresses_in(value: Any) -> Any:
    """The same of every text in a value of JSON types, without what is named ``url``."""
    if isinstance(value, str):
        return without_addresses(value)
    if isinstance(value, dict):
        return {name: without_addresses_in(each) for name, each in value.items() if name != "url"}
    return [without_addresses_in(each) for each in value] if isinstance(value, list) else value


def _is_outside(match: re.Match[str]) -> bool:
    if (url := match["url"]) is None:
        return False
    authority = re.split(r"[/?#\\]", url, maxsplit=1)[0].rpartition("@")[2].lower()
    host = authority[1:].partition("]")[0] if authority.startswith("[") else authority.partition(":")[0]
    try:
        return is_public(host)
    except ValueError:
        return "." in host and not host.endswith(_INNER)
