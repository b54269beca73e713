"""Parses ``upstreams:`` of ``cwm.yaml`` into upstream specifications."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, model_validator

from cwm.domain.upstream import (
    NAME_PATTERN,
    RESERVED_NAMES,
    Bounds,
    Credentials,
    Override,
    Selection,
    TokenExchange,
    UpstreamSpec,
)
from cwm.domain.web_origin import is_link_local
from cwm.settings.fields import Bytes, Count, Fields, Seconds, SettingsError, first_fault
from cwm.settings.upstream_values import Command, Environment, Headers, Pattern, Secret, Text, ThingName, Url
from cwm.settings.urls import on_loopback
from cwm.settings.variables import Variables

UPSTREAMS: Final = "upstreams"

_FOREIGN: Final = {
    "type": "is not needed: an upstream with a 'url' is reached by HTTP, one with a 'command' is started",
    "transport": "is not needed: an upstream with a 'url' is reached by HTTP, one with a 'command' is started",
}


class OverrideFields(Fields):
    name: ThingName | None = None
    description: str | None = None


class SelectionFields(Fields):
    allow: list[Pattern] = Field(default_factory=lambda: ["*"])
    deny: list[Pattern] = Field(default_factory=list)
    override: dict[str, OverrideFields] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_name_each(self) -> Self:
        names = [override.name for override in self.override.values() if override.name is not None]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"'override' gives the name '{twice[0]}' twice")
        return self

    def selection(self) -> Selection:
        override = {own: Override(to.name, to.description) for own, to in self.override.items()}
        return Selection(tuple(self.allow), tuple(self.deny), override)


class ToolSelectionFields(SelectionFields):
    pin: bool = False


class ExchangeFields(Fields):
    token_url: Url
    client_id: Text
    client_secret: Secret
    audience: Text | None = None
    scope: Text | None = None

    @model_validator(mode="after")
    def _private(self) -> Self:
        if _in_the_clear(self.token_url):
            raise ValueError(
                "'token_url' must be https:// for any host but this machine: a secret is sent there"
            )
        return self


class UpstreamFields(Fields):
    url: Url | None = None
    command: Command | None = None
    args: list[str] = Field(default_factory=list)
    env: Environment = Field(default_factory=dict)
    cwd: Text | None = None
    headers: Headers = Field(default_factory=dict)
    credentials: Credentials = Credentials.NONE
    exchange: ExchangeFields | None = None
    stateless: bool = False
    connect_seconds: Seconds = Field(10.0, gt=0)
    call_seconds: Seconds = Field(300.0, gt=0)
    total_seconds: Seconds = Field(3600.0, gt=0)
    message_bytes: Bytes = Field(16 * 2**20, ge=1024)
    list_items: Count = Field(1_000, ge=1)
    list_bytes: Bytes = Field(4 * 2**20, ge=1024)
    tools: ToolSelectionFields = ToolSelectionFields()
    resources: SelectionFields = SelectionFields()
    prompts: SelectionFields = SelectionFields()
    instructions: bool = True

    @model_validator(mode="after")
    def _reached_in_one_way(self) -> Self:
        if (self.url is None) == (self.command is None):
            raise ValueError("needs a 'url' or a 'command', and not both")
        alone = ("args", "env", "cwd") if self.url else ("headers", "credentials", "exchange")
        other = "command" if self.url else "url"
        for name in alone:
            if name in self.model_fields_set and getattr(self, name) != Credentials.NONE:
                raise ValueError(f"'{name}' is for an upstream with a '{other}'")
        return self

    @model_validator(mode="after")
    def _keeps_credentials(self) -> Self:
        if (self.exchange is not None) != (self.credentials is Credentials.EXCHANGE):
            raise ValueError("'exchange' and 'credentials: exchange' need each other")
        if self.credentials is Credentials.NONE or self.url is None:
            return self
        if any(name.lower() == "authorization" for name in self.headers):
            raise ValueError(
                f"has a static 'Authorization' header and 'credentials: {self.credentials}'; only one can be sent"
            )
        if _in_the_clear(self.url):
            raise ValueError(
                f"'credentials: {self.credentials}' needs an https:// url for any host but this machine"
            )
        return self

    def spec(self, name: str) -> UpstreamSpec:
        exchange = TokenExchange(**self.exchange.model_dump()) if self.exchange else None
        return UpstreamSpec(
            name=name,
            command=(*self.command, *self.args) if self.command else (),
            url=self.url or "",
            env=self.env,
            cwd=str(Path(self.cwd).expanduser()) if self.cwd else None,
            headers=self.headers,
            credentials=self.credentials,
            exchange=exchange,
            stateless=self.stateless,
            connect_seconds=self.connect_seconds,
            call_seconds=self.call_seconds,
            total_seconds=self.total_seconds,
            bounds=Bounds(self.message_bytes, self.list_items, self.list_bytes),
            tools=self.tools.selection(),
            pin_tools=self.tools.pin,
            resources=self.resources.selection(),
            prompts=self.prompts.selection(),
            instructions=self.instructions,
        )


def read_upstreams(
    document: Any, environ: Mapping[str, str], path: Path, *, link_local: bool = True
) -> tuple[tuple[UpstreamSpec, ...], set[str]]:
    """The upstreams in the order of the file, and the variables that they use. Raises SettingsError.

    Without ``link_local``, link-local addresses are refused.
    """
    if document is None:
        return (), set()
    if not isinstance(document, dict):
        raise SettingsError(f"'{UPSTREAMS}' in {path} must contain upstreams by name.")
    variables = Variables(environ)
    specs = []
    for name, fields in document.items():
        _require_name(name, path)
        try:
            upstream_fields = UpstreamFields.model_validate(
                {} if fields is None else fields, context=variables
            )
        except ValidationError as invalid:
            raise SettingsError(
                first_fault(invalid, f"{UPSTREAMS}.{name}", path, "an upstream", _FOREIGN)
            ) from None
        spec = upstream_fields.spec(name)
        if not link_local:
            _require_elsewhere(spec, path)
        specs.append(spec)
    return tuple(specs), variables.used


def _require_name(name: Any, path: Path) -> None:
    place = f"{UPSTREAMS}.{name} in {path}"
    if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN.removesuffix("$"), name):
        raise SettingsError(
            f"{place}: a name has 1 to 32 lower-case letters, digits and hyphens, and starts with a letter."
        )
    if name in RESERVED_NAMES:
        raise SettingsError(f"{place}: CWM's own tools or resources use this name; choose another one.")


def _require_elsewhere(spec: UpstreamSpec, path: Path) -> None:
    """Refuse addresses where clouds serve a machine's credentials.

    Host names are checked again when they are resolved.
    """
    urls = {"url": spec.url, "exchange.token_url": spec.exchange.token_url if spec.exchange else ""}
    for field, url in urls.items():
        if url and is_link_local(urlsplit(url).hostname or ""):
            raise SettingsError(
                f"{UPSTREAMS}.{spec.name}.{field} in {path} is a link-local or metadata address; "
                "CWM_ALLOW_LINK_LOCAL=true allows it."
            )


def _in_the_clear(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "http" and not on_loopback(parts.hostname or "")
