"""Parses URLs in settings. Error messages never repeat a URL: it may contain a password."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

POSTGRES: Final = frozenset({"postgres", "postgresql", "postgresql+asyncpg"})
SQLITE: Final = frozenset({"sqlite", "sqlite+aiosqlite"})

_ENCODE: Final = "percent-encode special characters in its user and password"
_PARAMETER: Final = re.compile(r"\w{1,40}", re.ASCII)
_NAME: Final = r"\w([\w-]*\w)?(\.\w([\w-]*\w)?)*\.?"
_PLACE: Final = re.compile(rf"({_NAME}|\[(?P<ip>[0-9a-f:.]+)\])?(:\d{{1,5}})?", re.ASCII | re.IGNORECASE)
_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
# Parameters of libpq that asyncpg accepts in a URL of its own, and parameters that SQLAlchemy accepts.
_FILES: Final = frozenset({"sslrootcert", "sslcert", "sslkey", "sslcrl"})
_ASYNCPGS: Final = _FILES | {"sslmode", "target_session_attrs"}
_SQLALCHEMYS: Final[Mapping[str, str]] = {
    "host": r"/[^,:]*|[\w.-]+(:\d{1,5})?",
    "port": r"\d{1,5}",
    "prepared_statement_cache_size": r"\d{1,9}",
}
_BOOLEAN: Final = "true|false|yes|no|on|off|1|0"
_REDIS: Final[Mapping[str, str]] = {
    "client_name": r"\S+",
    "db": r"\d{1,9}",
    "health_check_interval": r"\d{1,9}",
    "max_connections": r"[1-9]\d{0,8}",
    "protocol": "[23]",
    "socket_connect_timeout": r"\d{1,9}(\.\d+)?",
    "socket_keepalive": _BOOLEAN,
    "socket_timeout": r"\d{1,9}(\.\d+)?",
}
_REDIS_OVER_TLS: Final[Mapping[str, str]] = {
    "ssl_ca_certs": ".+",
    "ssl_ca_path": ".+",
    "ssl_cert_reqs": "none|optional|required",
    "ssl_certfile": ".+",
    "ssl_check_hostname": _BOOLEAN,
    "ssl_keyfile": ".+",
}


def split(url: str) -> SplitResult:
    """The parts of a URL, all valid. Raises ValueError, without the URL."""
    try:
        parts = urlsplit(url)
        _ = parts.port
        place = _PLACE.fullmatch(parts.netloc.rpartition("@")[2])
        if place is None:
            raise ValueError
        ip_address(place["ip"] or "::1")
    except ValueError:
        hint = f"; {_ENCODE}" if "@" in url else ""
        raise ValueError(f"is not a URL: its host or port cannot be read{hint}") from None
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("must not contain spaces or control characters")
    if url.count("@") > ("@" in parts.netloc):
        raise ValueError(f"has an '@' that is not before its host; {_ENCODE}")
    return parts


def http_url(url: str) -> SplitResult:
    """The parts of an HTTP URL that can be called. Raises ValueError, without the URL."""
    parts = split(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.port == 0:
        raise ValueError("must be an http:// or https:// URL")
    return parts


def on_loopback(host: str) -> bool:
    """Whether ``host`` is ``localhost`` or a loopback address; other names are not resolved."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def sqlite_url(path: str) -> str:
    """SQLAlchemy's URL for an SQLite file."""
    return f"sqlite:///{quote(path)}"


def database_url(url: str) -> str:
    """SQLAlchemy's URL, with the driver that CWM uses. Raises ValueError, without the URL."""
    if "://" not in url:
        raise ValueError("must be a URL such as postgresql://user:password@host/db")
    parts = split(url)
    rest = url.partition("://")[2]
    if parts.scheme in SQLITE:
        return f"sqlite://{rest}"
    if parts.scheme not in POSTGRES:
        raise ValueError(f"has the scheme '{parts.scheme}'; use postgresql:// or leave it unset for SQLite")
    parameters = parse_qsl(parts.query, keep_blank_values=True)
    query = [(name, value) for name, value in parameters if name in _SQLALCHEMYS]
    for name, value in query:
        _require(name, value, _SQLALCHEMYS)
    own = _asyncpgs({name: value for name, value in parameters if name not in _SQLALCHEMYS})
    if own:
        query.append(("dsn", f"postgresql://?{urlencode(own)}"))
    base = rest.partition("#")[0].partition("?")[0]
    return f"postgresql+asyncpg://{base}" + (f"?{urlencode(query)}" if query else "")


def _asyncpgs(parameters: Mapping[str, str]) -> Mapping[str, str]:
    """The parameters by libpq's names, all accepted by asyncpg."""
    own = {"sslmode" if name == "ssl" else name: value for name, value in parameters.items()}
    for name in own:
        if name not in _ASYNCPGS:
            raise ValueError(
                f"has {_parameter(name)}, which the driver asyncpg does not accept; leave it out"
            )
    if own.get("sslmode", _SSL_MODES[0]) not in _SSL_MODES:
        raise ValueError(f"must have one of {', '.join(_SSL_MODES)} as sslmode")
    for name in _FILES & own.keys():
        if not Path(own[name]).is_file():
            raise ValueError(f"names a file as {name} that does not exist")
    return own


def redis_url(url: str) -> str:
    """``url`` if it is valid. Raises ValueError, without the URL."""
    parts = split(url)
    if parts.scheme not in {"redis", "rediss", "valkey", "valkeys", "unix"}:
        raise ValueError("must be a redis://, rediss://, valkey://, valkeys:// or unix:// URL")
    if parts.scheme != "unix" and not re.fullmatch(r"/?\d{0,9}/?", parts.path, re.ASCII):
        raise ValueError("must end in host:port or host:port/database, both numbers")
    patterns = {**_REDIS, **(_REDIS_OVER_TLS if parts.scheme in {"rediss", "valkeys"} else {})}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in patterns:
            raise ValueError(f"has {_parameter(name)}, which CWM does not accept; leave it out")
        _require(name, value, patterns)
    return url


def _require(name: str, value: str, patterns: Mapping[str, str]) -> None:
    if not re.fullmatch(patterns[name], value, re.ASCII | re.IGNORECASE):
        raise ValueError(f"has an invalid value of {_parameter(name)}")


def _parameter(name: str) -> str:
    return f"the parameter '{name}'" if _PARAMETER.fullmatch(name) else "a parameter"
