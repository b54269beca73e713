"""The secret key of cache salts and signatures: configured, or generated once and stored in a file."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from cwm.domain.audit_chain import ChainKeys
from cwm.settings import Isolation, SettingsError, places

_BYTES = 32


def load_secret(settings: Isolation, *, make: bool = True) -> bytes:
    """``CWM_SECRET``, otherwise the content of ``CWM_SECRET_FILE``, which is created (mode 0600) if missing.

    Raises SettingsError, also if the file is missing and ``make`` is False.
    """
    if settings.secret is not None:
        return settings.secret.get_secret_value().encode()
    path = settings.secret_file
    try:
        if make and not path.exists():
            _create(path)
        key = path.read_bytes().strip()
    except OSError as error:
        reason = places.refusal(path, error)
        raise SettingsError(f"CWM_SECRET_FILE {path} cannot be used: {reason}.") from error
    if not key:
        raise SettingsError(f"CWM_SECRET_FILE {path} is empty.")
    return key


def signing_secrets(settings: Isolation, *, make: bool = True) -> tuple[bytes, ...]:
    """The current key, which signs, and the previous one, whose signatures remain valid."""
    previous = settings.previous_secret
    current = load_secret(settings, make=make)
    return (current,) if previous is None else (current, previous.get_secret_value().encode())


def audit_keys(settings: Isolation, *older: bytes, make: bool = True) -> ChainKeys:
    """The keys that chain the audit log; ``older`` secrets only verify."""
    return ChainKeys((*signing_secrets(settings, make=make), *older))


def _create(path: Path) -> None:
    """Write a temporary file and link it into place: if two gateways start at once, both use the first one's key."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{secrets.token_hex(_BYTES)}\n")
    with contextlib.suppress(FileExistsError):
        os.link(aside, path)
    aside.unlink()
