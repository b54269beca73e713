"""Seals stored chunks: encrypts and authenticates them, and binds each to the name it is stored under.

A writer to Redis or to the disk tier can flip a bit, truncate a value, or store one chunk's value under
another chunk's name. None of these can be opened, because the name is authenticated with the content.

A sealed chunk is ``[1 byte format][4 bytes key id][12 bytes nonce][ciphertext][16 bytes tag]``, AES-256-GCM.
Its key is derived from a keyring's key and the chunk's cache_salt, so tenants have different keys.
"""

from __future__ import annotations

import hashlib
import os
import threading
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_FORMAT = 2
_KEY_ID_BYTES = 4
_NONCE_BYTES = 12
_TAG_BYTES = 16
_HEAD_BYTES = 1 + _KEY_ID_BYTES + _NONCE_BYTES
OVERHEAD_BYTES = _HEAD_BYTES + _TAG_BYTES
_KEY_BYTES = 32
_PURPOSE = b"cwm-chunk-seal-v2 "


class KeyringError(Exception):
    """The keyring's file cannot be used; the message gives the reason and no key."""


class SealError(Exception):
    """The stored value is not the one that was sealed under this name."""


class Keyring:
    """The keys in a file: one per line, 64 hexadecimal digits; blank lines and ``#`` comments are ignored.

    The first key seals, all keys open. The file is read again when it changes: rotate keys by adding a new
    first line, and remove a key when no chunk sealed with it is needed any more.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._loaded_version: tuple[int, int] = (0, 0)
        self._keys: dict[bytes, bytes] = {}
        self._first = b""
        self._refresh()

    def first(self) -> tuple[bytes, bytes]:
        """The id of the sealing key, and the key."""
        self._refresh_if_changed()
        with self._lock:
            return self._first, self._keys[self._first]

    def names(self) -> list[str]:
        """The ids of all keys in hexadecimal digits, that of the sealing key first. They tell nothing of the keys."""
        self._refresh_if_changed()
        with self._lock:
            return [self._first.hex(), *(key_id.hex() for key_id in self._keys if key_id != self._first)]

    def key(self, key_id: bytes) -> bytes:
        """The key with this id. Raises SealError if the file has none."""
        self._refresh_if_changed()
        with self._lock:
            key = self._keys.get(key_id)
        if key is None:
            raise SealError(f"sealed with a key that is not in {self._path}")
        return key

    def _refresh_if_changed(self) -> None:
        """Read the file again if it changed; if it cannot be read any more, keep the last keys."""
        try:
            if _version(self._path) != self._loaded_version:
                self._refresh()
        except (OSError, KeyringError):
            return

    def _refresh(self) -> None:
        try:
            version = _version(self._path)
            text = self._path.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise KeyringError(f"{self._path} cannot be read as a keyring") from error
        lines = [line.strip() for line in text.splitlines()]
        keys = [_parse(line, self._path) for line in lines if line and not line.startswith("#")]
        if not keys:
            raise KeyringError(f"{self._path} contains no key")
        with self._lock:
            self._keys = {_id(key): key for key in keys}
            self._first = _id(keys[0])
            self._loaded_version = version


def seal(ring: Keyring, name: str, salt: str, plain: memoryview, out: memoryview) -> int:
    """Write the sealed chunk to the start of ``out``; return its size, ``len(plain) + OVERHEAD_BYTES``."""
    key_id, key = ring.first()
    nonce = os.urandom(_NONCE_BYTES)
    size = len(plain) + OVERHEAD_BYTES
    out[:_HEAD_BYTES] = bytes((_FORMAT,)) + key_id + nonce
    _cipher(key, salt).encrypt_into(nonce, plain, name.encode(), out[_HEAD_BYTES:size])
    return size


def unseal(ring: Keyring, name: str, salt: str, sealed: memoryview, out: memoryview) -> None:
    """Fill ``out`` with the content that was sealed under ``name``; ``sealed`` may be longer than the sealed chunk.

    Raises SealError; the content of ``out`` is then invalid.
    """
    size = len(out) + OVERHEAD_BYTES
    if len(sealed) < size or sealed[0] != _FORMAT:
        raise SealError("not a sealed chunk of this size")
    key = ring.key(bytes(sealed[1 : 1 + _KEY_ID_BYTES]))
    nonce = bytes(sealed[1 + _KEY_ID_BYTES : _HEAD_BYTES])
    try:
        _cipher(key, salt).decrypt_into(nonce, sealed[_HEAD_BYTES:size], name.encode(), out)
    except InvalidTag as error:
        raise SealError("the stored chunk was changed, or belongs under another name") from error


@lru_cache(maxsize=4096)
def _cipher(key: bytes, salt: str) -> AESGCM:
    derived = HKDF(SHA256(), _KEY_BYTES, None, _PURPOSE + salt.encode()).derive(key)
    return AESGCM(derived)


def _id(key: bytes) -> bytes:
    return hashlib.sha256(_PURPOSE + b"id " + key).digest()[:_KEY_ID_BYTES]


def _parse(line: str, path: Path) -> bytes:
    try:
        key = bytes.fromhex(line)
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise KeyringError(f"{path} contains a line that is not a key of {2 * _KEY_BYTES} hexadecimal digits")
    return key


def _version(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_ino
