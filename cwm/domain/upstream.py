"""Upstream MCP servers: their configuration, the names their offers get, and which calls may be repeated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from cwm.domain.resource_uris import climbs, matches, plainly_matches
from cwm.domain.upstream_uris import ServedUris, exposed_uri, parts, with_uris

NAME_PATTERN: Final = r"^[a-z][a-z0-9-]{0,31}$"
"""No underscore: in an exposed name, the first underscore ends the upstream's name."""

_OWN_TOOLS: Final = frozenset(
    {"agent", "cache", "context", "engine", "get", "health", "result", "session", "turn", "window"}
)
_OWN_HOSTS: Final = frozenset({"context", "results", "sessions", "stats", "status", "turns", "windows"})
RESERVED_NAMES: Final = _OWN_TOOLS | _OWN_HOSTS
"""First words of CWM's own tool names, and the hosts of its own URIs."""


class OfferKind(StrEnum):
    """The kinds of things that an upstream offers."""

    TOOLS = "tools"
    RESOURCES = "resources"
    TEMPLATES = "templates"
    PROMPTS = "prompts"


class Credentials(StrEnum):
    """Which credentials of the caller an upstream gets."""

    NONE = "none"
    FORWARD = "forward"
    EXCHANGE = "exchange"


@dataclass(frozen=True, slots=True)
class TokenExchange:
    """Where a caller's access token is exchanged for one of the upstream's (RFC 8693)."""

    token_url: str
    client_id: str
    client_secret: str = field(repr=False)
    audience: str | None = None
    scope: str | None = None


@dataclass(frozen=True, slots=True)
class Override:
    """Another name (without the upstream's prefix) or description for one offer; None keeps its own."""

    name: str | None = None
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """Which offers of one kind are exposed: shell patterns over their own names, or URIs for resources."""

    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()
    override: Mapping[str, Override] = field(default_factory=dict)

    def admits(self, own_name: str) -> bool:
        return matches(own_name, self.allow) and not matches(own_name, self.deny)

    def admits_uri(self, own: str) -> bool:
        """Like ``admits`` for a resource's URI. Another spelling of the URI cannot bypass the patterns."""
        if climbs(own) or matches(own, self.deny) or plainly_matches(own, self.deny):
            return False
        return matches(own, self.allow) and plainly_matches(own, self.allow)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that is taken from one upstream: decoded bytes of a message, and items and bytes of each of its lists."""

    message_bytes: int = 16 * 2**20
    list_items: int = 1_000
    list_bytes: int = 4 * 2**20


@dataclass(frozen=True, slots=True)
class UpstreamSpec:
    """The configuration of one upstream. Exactly one of ``command`` (stdio) and ``url`` (streamable HTTP) is set.

    ``stateless``: one session may serve all agents; otherwise each agent session has its own. ``total_seconds``: how long a
    call may take that reports progress. ``pin_tools``: tools and instructions that changed are hidden until they are accepted.
    ``instructions``: clients are given the upstream's.
    """

    name: str
    command: tuple[str, ...] = ()
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    credentials: Credentials = Credentials.NONE
    exchange: TokenExchange | None = None
    stateless: bool = False
    connect_seconds: float = 10.0
    call_seconds: float = 300.0
    total_seconds: float = 3600.0
    bounds: Bounds = Bounds()
    tools: Selection = Selection()
    pin_tools: bool = False
    resources: Selection = Selection()
    prompts: Selection = Selection()
    instructions: bool = True

    def selection(self, kind: OfferKind) -> Selection:
        if kind is OfferKind.TOOLS:
            return self.tools
        return self.prompts if kind is OfferKind.PROMPTS else self.resources


Definition = Mapping[str, Any]
"""A tool, resource, template or prompt as MCP represents it (camelCase JSON)."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One thing that an upstream lists, with the definition that clients see."""

    upstream: str
    own_name: str
    definition: Definition


def exposed_name(upstream: str, own_name: str) -> str:
    return f"{upstream}_{own_name}"


def is_reserved_uri(exposed: str) -> bool:
    """Whether the URI is one of CWM's own, which no upstream can offer."""
    return re.split("[/?]", parts(exposed)[1], maxsplit=1)[0] in RESERVED_NAMES


def offers(spec: UpstreamSpec, kind: OfferKind, definitions: tuple[Definition, ...]) -> dict[str, Offer]:
    """The offers made of ``definitions``, by exposed name; of two with the same name, the first wins."""
    selection, by_name = spec.selection(kind), dict[str, Offer]()
    rename = ServedUris(spec.name).exposed
    name_field = {OfferKind.RESOURCES: "uri", OfferKind.TEMPLATES: "uriTemplate"}.get(kind, "name")
    for definition in definitions:
        own_name = str(definition[name_field])
        admits = selection.admits if name_field == "name" else selection.admits_uri
        if not admits(own_name):
            continue
        override = selection.override.get(own_name, Override())
        if kind in {OfferKind.TOOLS, OfferKind.PROMPTS}:
            exposed = exposed_name(spec.name, override.name or own_name)
            exposed_definition = {**with_uris(definition, rename), "name": exposed}
        else:
            exposed = exposed_uri(spec.name, own_name)
            name = exposed_name(spec.name, override.name or str(definition["name"]))
            exposed_definition = {**with_uris(definition, rename), name_field: exposed, "name": name}
        if override.description is not None:
            exposed_definition["description"] = override.description
        by_name.setdefault(exposed, Offer(spec.name, own_name, exposed_definition))
    return by_name


def only_reads(definition: Definition) -> bool:
    """Whether the tool declares that it changes nothing."""
    return (definition.get("annotations") or {}).get("readOnlyHint") is True


def answers_alike(definition: Definition) -> bool:
    """Whether the tool only reads and does not declare that repeated calls give different answers."""
    return only_reads(definition) and (definition.get("annotations") or {}).get("idempotentHint") is not False


def runs_as_task(definition: Definition) -> bool:
    """Whether the tool declares that a call may be a task."""
    return (definition.get("execution") or {}).get("taskSupport") in {"optional", "required"}


def may_repeat(definition: Definition) -> bool:
    """Whether a call may be repeated: the tool declares itself idempotent, or it only reads and does not deny it."""
    return answers_alike(definition) or (definition.get("annotations") or {}).get("idempotentHint") is True
