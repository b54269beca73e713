"""The vault: seals what was said before it is stored, and gives it a name that tells nothing.

Sealed is AES-256-GCM under a key of the row's own, derived from a registry key, and bound to the row: what is moved to another row, or
changed, does not open. Without keys everything stays in the clear; what is stored in the clear can always be read.
"""

from __future__ import annotations

import base64
import hmac
import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from cwm.domain.errors import StorageCorruptionError, StorageKeyError

_MARK: Final = b"CWM1"
_TEXT_MARK: Final = "cwm1:"
_ID_BYTES: Final = 4
_NONCE_BYTES: Final = 12
_CACHED: Final = 8192
_CONTENT: Final = len(_MARK) + _ID_BYTES + _NONCE_BYTES


class Vault:
    """The first of ``keys`` seals and names, all of them open. ``row``: what identifies the row, the tenant included."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._keys = {_derived(key.encode(), "id")[:_ID_BYTES]: key.encode() for key in keys}
        self._first = next(iter(self._keys), None)
        self._opened = lru_cache(_CACHED)(self._open_text)
        if self._keys:
            # Not for a gateway without keys: it loads OpenSSL.
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            self._cipher: Any = AESGCM

    def __bool__(self) -> bool:
        """Whether it seals."""
        return self._first is not None

    def seal(self, content: bytes, *row: str) -> bytes:
        """The content as it is stored; nothing stays nothing."""
        if self._first is None or not content:
            return content
        nonce, bound = os.urandom(_NONCE_BYTES), _bound(row)
        sealed: bytes = self._cipher_of(self._first, bound).encrypt(nonce, content, bound)
        return b"".join((_MARK, self._first, nonce, sealed))

    def open(self, stored: bytes, *row: str) -> bytes:
        """The content. CWM-4005 for one sealed with another key, CWM-4004 for one that was changed or is another row's."""
        if not stored.startswith(_MARK):
            return stored
        key_id = stored[len(_MARK) : len(_MARK) + _ID_BYTES]
        if key_id not in self._keys:
            raise StorageKeyError(
                f"This is encrypted with the registry key {key_id.hex()}, which the gateway does not have. Add it to CWM_REGISTRY_KEY.",
                key_id=key_id.hex(),
            )
        from cryptography.exceptions import InvalidTag

        nonce, bound = stored[_CONTENT - _NONCE_BYTES : _CONTENT], _bound(row)
        try:
            content: bytes = self._cipher_of(key_id, bound).decrypt(nonce, stored[_CONTENT:], bound)
        except InvalidTag as error:
            raise StorageCorruptionError("Encrypted content was changed, or is another row's.") from error
        return content

    def seal_text(self, text: str, *row: str) -> str:
        return _TEXT_MARK + base64.b64encode(self.seal(text.encode(), *row)).decode() if self else text

    def open_text(self, stored: str, *row: str) -> str:
        """:meth:`open` for what :meth:`seal_text` returned. A turn reads the same of all turns before it: the last ones are cached."""
        return self._opened(stored, *row) if is_sealed_text(stored) else stored

    def name(self, tenant: str, digest: str) -> str:
        """The name of what has this digest: a keyed digest after the id of its key, or without keys the digest."""
        return self.names(tenant, digest)[0]

    def names(self, tenant: str, digest: str) -> tuple[str, ...]:
        """The names that it may have been given, :meth:`name` first."""
        keyed = (
            f"{key_id.hex()}.{_derived(key, 'name', tenant, digest).hex()[: len(digest)]}"
            for key_id, key in self._keys.items()
        )
        return (*keyed, digest)

    def is_current(self, stored: bytes | str) -> bool:
        """Whether something sealed, or a name, is as this vault would make it now."""
        if self._first is None:
            return True
        if isinstance(stored, bytes):
            return not stored or stored.startswith(_MARK + self._first)
        if is_sealed_text(stored):
            return self.is_current(base64.b64decode(stored.removeprefix(_TEXT_MARK)))
        return stored.startswith(f"{self._first.hex()}.")

    def _open_text(self, stored: str, *row: str) -> str:
        return self.open(base64.b64decode(stored.removeprefix(_TEXT_MARK)), *row).decode()

    def _cipher_of(self, key_id: bytes, bound: bytes) -> Any:
        """Of a key for this row alone: so random nonces do not run out, however much a registry holds."""
        return self._cipher(hmac.digest(self._keys[key_id], b"content\0" + bound, "sha256"))


def is_sealed_text(stored: str) -> bool:
    return stored.startswith(_TEXT_MARK)


def _bound(row: Sequence[str]) -> bytes:
    return "\0".join(row).encode()


def _derived(key: bytes, *purpose: str) -> bytes:
    return hmac.digest(key, _bound(purpose), "sha256")


CLEAR: Final = Vault()
