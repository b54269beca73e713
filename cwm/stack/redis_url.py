"""Converts a Redis URL to the fields of LMCache's ``valkey`` adapter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from cwm.stack.errors import StackError

_PLAIN = {"redis", "valkey"}
_TLS = {"rediss", "valkeys"}


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Address and credentials of a Redis or Valkey server."""

    host: str
    port: int
    username: str = ""
    password: str = field(default="", repr=False)
    database: int = 0
    tls: bool = False

    @classmethod
    def parse(cls, url: str) -> RedisAddress:
        """Parse ``redis[s]://[user[:password]@]host[:port][/database]``. Raises StackError, without the password."""
        parts = urlsplit(url)
        if parts.scheme not in _PLAIN | _TLS:
            raise StackError(
                f"CWM_REDIS_URL has the scheme '{parts.scheme}'; the shared tier takes redis:// or rediss://."
            )
        try:
            port, database = parts.port or 6379, int(parts.path.strip("/") or 0)
        except ValueError:
            raise StackError(
                "CWM_REDIS_URL must end in host:port or host:port/database, both numbers."
            ) from None
        if not parts.hostname:
            raise StackError("CWM_REDIS_URL names no host.")
        return cls(
            host=parts.hostname,
            port=port,
            username=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            database=database,
            tls=parts.scheme in _TLS,
        )

    def adapter(self) -> dict[str, Any]:
        """The connection fields of the adapter's JSON."""
        optional = {"username": self.username, "password": self.password, "database_id": self.database}
        fields = {"startup_nodes": f"{self.host}:{self.port}", "tls_enable": self.tls}
        return fields | {name: value for name, value in optional.items() if value}

    def url(self) -> str:
        """The URL that :meth:`parse` turns into this address, including the password."""
        user, password = quote(self.username, safe=""), quote(self.password, safe="")
        account = f"{user}:{password}@" if password else f"{user}@" if user else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{account}{host}:{self.port}/{self.database}"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"
