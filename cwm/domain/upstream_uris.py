"""URIs of an upstream's resources: their names at the gateway, and the fields of MCP that hold them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

Rename = Callable[[str], str]

# A template may have expressions in its scheme; without a scheme it can stand for URIs of any.
_SCHEME: Final = re.compile(r"(?:[A-Za-z0-9+.-]|\{[^{}]*\})+:(?://)?")
# A client resolves these by itself.
_ELSEWHERE: Final = re.compile(r"(?:https?|data):", re.IGNORECASE)
_EXPRESSION: Final = re.compile(r"\{(.)[^{}]*\}")
_OPERATORS: Final = "+#./;?&"
_LONGEST: Final = 2_048
# A question has params, these messages, a message contents, and a content a resource.
_MOST_DEPTH: Final = 8
_PARTS_WITH_URIS: Final = ("content", "contents", "messages", "resource", "params")
# The page of a tool: of MCP Apps in its present and its earlier form, and of OpenAI's Apps SDK.
_PAGES: Final = ("ui/resourceUri", "openai/outputTemplate")


def exposed_uri(upstream: str, uri: str) -> str:
    """``file:///a`` of ``docs`` becomes ``file://docs//a``, and ``{+uri}`` ``docs/{+uri}``; what follows the name stays unchanged."""
    scheme, rest = parts(uri)
    return f"{scheme}{upstream}/{rest}"


def own_uri(upstream: str, exposed: str) -> str | None:
    """Inverse of ``exposed_uri``; None when the URI is not this upstream's."""
    scheme, rest = parts(exposed)
    prefix = f"{upstream}/"
    return f"{scheme}{rest.removeprefix(prefix)}" if rest.startswith(prefix) else None


def parts(uri: str) -> tuple[str, str]:
    """The scheme with its separators, empty if there is none, and what follows."""
    scheme = _SCHEME.match(uri)
    end = 0 if scheme is None else scheme.end()
    return uri[:end], uri[end:]


def is_elsewhere(uri: str) -> bool:
    """Whether a client can resolve the URI without the upstream, so that only its lists say that it is a resource."""
    return _ELSEWHERE.match(uri) is not None


@dataclass(frozen=True, slots=True)
class ServedUris:
    """Decides which URIs of an upstream have another name at the gateway: those that the upstream serves.

    An address of the web is one of them if it is among ``listed``, or fits one of ``templates`` that is of the web itself. ``requested``: the URI that
    was asked for, and how the client spelled it.
    """

    upstream: str
    listed: frozenset[str] = frozenset()
    templates: tuple[str, ...] = ()
    requested: tuple[str, str] | None = None

    def exposed(self, uri: str) -> str:
        if self.requested is not None and uri == self.requested[0]:
            return self.requested[1]
        return exposed_uri(self.upstream, uri) if self._serves(uri) else uri

    def _serves(self, uri: str) -> bool:
        if not is_elsewhere(uri) or uri in self.listed:
            return True
        return any(is_elsewhere(template) and _fits(uri, template) for template in self.templates)


def with_uris(answer: Mapping[str, Any], rename: Rename, depth: int = 0) -> dict[str, Any]:
    """A result or a definition with its URIs renamed: of links, contents and embedded resources, also in messages and questions, and in ``_meta``."""
    changes = {name: _part(answer[name], rename, depth) for name in _PARTS_WITH_URIS if name in answer}
    if isinstance(questions := answer.get("inputRequests"), dict):
        changes["inputRequests"] = {key: _part(each, rename, depth) for key, each in questions.items()}
    if isinstance(meta := answer.get("_meta"), dict):
        changes["_meta"] = _meta(meta, rename)
    return {**answer, **changes}


def uris_in(answer: Mapping[str, Any]) -> list[str]:
    """The URIs that ``with_uris`` renames."""
    uris: list[str] = []

    def collect(uri: str) -> str:
        uris.append(uri)
        return uri

    with_uris(answer, collect)
    return uris


def _part(part: Any, rename: Rename, depth: int) -> Any:
    if depth == _MOST_DEPTH:
        return part
    if isinstance(part, list):
        return [_part(each, rename, depth + 1) for each in part]
    if not isinstance(part, dict):
        return part
    renamed = with_uris(part, rename, depth + 1)
    if isinstance(uri := part.get("uri"), str):
        renamed["uri"] = rename(uri)
    return renamed


def _meta(meta: Mapping[str, Any], rename: Rename) -> dict[str, Any]:
    renamed = {
        name: rename(value) if name in _PAGES and isinstance(value, str) else value
        for name, value in meta.items()
    }
    if isinstance(ui := meta.get("ui"), dict) and isinstance(page := ui.get("resourceUri"), str):
        renamed["ui"] = {**ui, "resourceUri": rename(page)}
    return renamed


def _fits(uri: str, template: str) -> bool:
    """Whether the URI can be an expansion of the template (RFC 6570). Of what is longer than 2,048 characters none is."""
    import re2

    if len(uri) > _LONGEST or len(template) > _LONGEST:
        return False
    pattern, end = "", 0
    for expression in _EXPRESSION.finditer(template):
        pattern += re2.escape(template[end : expression.start()])
        pattern += ".*" if expression[1] in _OPERATORS else "[^/?#]*"
        end = expression.end()
    return re2.fullmatch(pattern + re2.escape(template[end:]), uri) is not None
