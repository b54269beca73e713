"""Parses ``engines:`` of ``cwm.yaml``: the engines by name."""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, Field, SecretStr, ValidationError, model_validator

from cwm.domain.engine_rules import NO_RULES, EngineRules
from cwm.settings.engine import ABSENT, Engine
from cwm.settings.fields import Count, Fields, SettingsError, Tenant, UserPath, first_fault
from cwm.settings.upstream_values import Secret, Text
from cwm.settings.urls import http_url
from cwm.settings.variables import Variables, content_of

ENGINES: Final = "engines"

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,31}")
_LABEL: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
_LMCACHE_PORT: Final = 8081


def _base(url: str) -> str:
    if "@" in http_url(url).netloc:
        raise ValueError("must not contain a user or a password")
    return url.rstrip("/")


def _base_or_none(url: str) -> str:
    return url if url == ABSENT else _base(url)


class TlsFields(Fields):
    """Files: the certificates that vouch for vLLM's, and a certificate of CWM's own with its key."""

    ca: UserPath | None = None
    cert: UserPath | None = None
    key: UserPath | None = None

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if (self.cert is None) != (self.key is None):
            raise ValueError("'cert' and 'key' need each other")
        self.context()
        return self

    def context(self) -> ssl.SSLContext:
        """Raises ValueError about a file that cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except OSError as error:
            raise ValueError(f"a file cannot be used: {error.strerror or error}") from None
        return context


class EngineEntry(Engine):
    """One of several engines: what it has of its own, and what all share.

    ``files`` are those that its key and certificates come from, ``file_digest`` is of what they held. ``dns``: host and port of a name
    whose addresses are engines, each :meth:`at` its own.
    """

    dns: tuple[str, int] | None = None
    tls: TlsFields | None = None
    files: tuple[Path, ...] = ()
    file_digest: str = ""
    rules: EngineRules = NO_RULES

    @property
    def server_name(self) -> str | None:
        return None if self.dns is None else self.dns[0]

    def at(self, address: str) -> EngineEntry:
        """The engine at one address of its name."""
        assert self.dns is not None
        scheme, host = "http" if self.tls is None else "https", f"[{address}]" if ":" in address else address
        url = f"{scheme}://{host}:{self.dns[1]}"
        lmcache = self.lmcache_url if self.lmcache_url == ABSENT else _beside(url)
        return self.model_copy(update={"vllm_url": url, "lmcache_url": lmcache})

    @property
    def is_router(self) -> bool:
        return self.rules.is_router

    def tls_context(self) -> ssl.SSLContext | None:
        return None if self.tls is None else self.tls.context()

    def reached_as(self, other: Engine) -> bool:
        """Whether connections to ``other`` serve for this one."""
        if not isinstance(other, EngineEntry) or self.is_router is not other.is_router:
            return False
        return self == other.model_copy(update={"rules": self.rules})


def _host_and_port(name: str) -> str:
    host, _, port = name.rpartition(":")
    if not _HOST.fullmatch(host) or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ValueError("must be a name and a port, such as vllm.engines.svc:8000")
    return name


class EngineFields(Fields):
    url: Annotated[str, AfterValidator(_base)] | None = None
    dns: Annotated[str, AfterValidator(_host_and_port)] | None = None
    api_key: Secret | None = None
    api_key_file: UserPath | None = None
    tls: TlsFields | None = None
    lmcache: Annotated[str, AfterValidator(_base_or_none)] | None = None
    tenants: list[Tenant] | None = None
    deployment: Text | None = None
    max_running: Annotated[Count, Field(ge=1)] | None = None
    router: bool = False

    @model_validator(mode="after")
    def _reached_in_one_way(self) -> Self:
        if (self.url is None) == (self.dns is None):
            raise ValueError("needs a 'url' or a 'dns' name, and not both")
        if self.dns is not None and (self.router or self.lmcache not in {None, ABSENT}):
            raise ValueError(
                "has a 'dns' name: its LMCache servers are at the same addresses, and it is no router"
            )
        return self

    @model_validator(mode="after")
    def _keyed_once(self) -> Self:
        if self.api_key is not None and self.api_key_file is not None:
            raise ValueError("has 'api_key' and 'api_key_file'; one of them is enough")
        self._key()
        return self

    def entry(self, shared: Engine) -> EngineEntry:
        key, tls = self._key(), self.tls or TlsFields()
        host, _, port = (self.dns or "").rpartition(":")
        url = self.url or f"http://{self.dns}"
        files = tuple(path for path in (self.api_key_file, tls.ca, tls.cert, tls.key) if path is not None)
        own = {
            "vllm_url": url,
            "dns": (host, int(port)) if self.dns else None,
            "vllm_api_key": None if key is None else SecretStr(key),
            # Beside a router there is no LMCache server.
            "lmcache_url": self.lmcache or (shared.lmcache_url if self.router else _beside(url)),
            "tls": self.tls,
            "files": files,
            "file_digest": hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest(),
            "rules": EngineRules(
                tenants=None if self.tenants is None else frozenset(self.tenants),
                deployment=self.deployment or "",
                max_running=self.max_running,
                is_router=self.router,
            ),
        }
        return EngineEntry(**{**dict(shared), **own})

    def _key(self) -> str | None:
        if self.api_key_file is None:
            return self.api_key
        return content_of(self.api_key_file, f"'api_key_file' names {self.api_key_file}, which")


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
    host = http_url(url).hostname or ""
    return f"http://{f'[{host}]' if ':' in host else host}:{_LMCACHE_PORT}"
