"""Log in to a Valkey or Redis that has a password.

LMCache 0.5.6 passes ``(username, password)`` by position to ``glide_sync.ServerCredentials``, whose order in
valkey-glide-sync 2.5.3 is ``(password, username)``: the password arrives as the user name, and no password is sent.
"""

from __future__ import annotations

import inspect
from typing import Any

_BY_POSITION = "ServerCredentials(self._username, self._password)"


def name_credentials() -> None:
    """Make LMCache's call mean what it says. Does nothing for an LMCache that passes the credentials otherwise."""
    import glide_sync
    from lmcache.v1.storage_backend.valkey import worker_pool

    if _BY_POSITION not in inspect.getsource(worker_pool):
        return
    credentials = glide_sync.ServerCredentials

    def by_name(username: str | None, password: str | None) -> Any:
        return credentials(password=password, username=username or None)

    glide_sync.ServerCredentials = by_name
