"""Parses ``engines:`` of ``cwm.yaml``: the engines by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, SecretStr, ValidationError

from cwm.domain.engine_rules import NO_RULES, EngineRules
from cwm.settings.engine import ABSENT, Engine
from cwm.settings.fields import Count, Fields, SettingsError, first_fault
from cwm.settings.upstream_values import Secret
from cwm.settings.urls import http_url
from cwm.settings.variables import Variables

ENGINES: Final = "engines"

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,31}")
_LMCACHE_PORT: Final = 8081


def _base(url: str) -> str:
    if "@" in http_url(url).netloc:
        raise ValueError("must not contain a user or a password")
    return url.rstrip("/")


def _base_or_none(url: str) -> str:
    return url if url == ABSENT else _base(url)


class EngineEntry(Engine):
    """One of several engines: what it has of its own, and what all share."""

    rules: EngineRules = NO_RULES

    def reached_as(self, other: Engine) -> bool:
        """Whether connections to ``other`` serve for this one."""
        return isinstance(other, EngineEntry) and self == other.model_copy(update={"rules": self.rules})


class EngineFields(Fields):
    url: Annotated[str, AfterValidator(_base)]
    api_key: Secret | None = None
    lmcache: Annotated[str, AfterValidator(_base_or_none)] | None = None
    max_running: Annotated[Count, Field(ge=1)] | None = None

    def entry(self, shared: Engine) -> EngineEntry:
        own = {
            "vllm_url": self.url,
            "vllm_api_key": None if self.api_key is None else SecretStr(self.api_key),
            "lmcache_url": self.lmcache or _beside(self.url),
            "rules": EngineRules(max_running=self.max_running),
        }
        return EngineEntry(**{**dict(shared), **own})


def read_engines(
    document: Any, shared: Engine, environ: Mapping[str, str], path: Path
) -> tuple[dict[str, EngineEntry], set[str]]:
    """The engines in the order of the file, each with what all ``shared``, and the variables that they use. Raises SettingsError."""
    if document is None:
        return {}, set()
    if not isinstance(document, dict):
        raise SettingsError(f"'{ENGINES}' in {path} must contain engines by name.")
    variables = Variables(environ)
    engines = {}
    for name, values in document.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SettingsError(
                f"{ENGINES}.{name} in {path}: a name has 1 to 32 lower-case letters, digits and hyphens, and starts with a letter."
            )
        try:
            fields = EngineFields.model_validate({} if values is None else values, context=variables)
        except ValidationError as invalid:
            raise SettingsError(first_fault(invalid, f"{ENGINES}.{name}", path, "an engine")) from None
        engines[name] = fields.entry(shared)
    return engines, variables.used


def _beside(url: str) -> str:
    """The LMCache server at the same address."""
    return f"http://{http_url(url).hostname}:{_LMCACHE_PORT}"
