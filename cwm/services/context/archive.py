"""Export and import of shared context: the current keys of a tenant's named scopes in one file.

The file is a sequence of records: a header, every content once in its stored form, every scope with its keys, the end.
A record is a line of JSON followed by as many bytes as its ``bytes`` field says. Private scopes are left out because
they end with their agent sessions; so are cached answers of upstreams.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO, Final
from uuid import uuid4

from cwm.domain.errors import InvalidParameterError, StorageCorruptionError
from cwm.domain.shared_context import ANSWERS, ContextScope, Entry, Write, require_key, scope_of
from cwm.ports.clock import Clock
from cwm.ports.content_store import ContentStore
from cwm.ports.context_index import ContextIndex
from cwm.services.contents.form import plain_form, plain_size
from cwm.threads import aside

_FORMAT: Final = 1
_AUTHOR: Final = "import"
_IMPORT_HOLD: Final = timedelta(hours=1)
_MAX_LINE_BYTES: Final = 1 << 28
_MAX_CONTENT_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Archived:
    """Counts of an export or import. ``bytes``: contents in stored form. ``lost``: keys with a missing or damaged value."""

    scopes: int = 0
    keys: int = 0
    contents: int = 0
    bytes: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class ContextArchive:
    index: ContextIndex
    contents: ContentStore
    clock: Clock
    versions: int
    quota_bytes: int | None = None

    async def write(self, tenant: str, file: BinaryIO) -> Archived:
        """Export the tenant's named scopes, each as of one moment. CWM-4002."""
        _put(file, {"cwm_context": _FORMAT, "tenant": tenant})
        scopes = [scope for scope in await self.index.scopes(tenant) if scope.is_named]
        states = [(scope, await self._state(scope)) for scope in scopes]
        sizes: dict[str, int] = {}
        for digest in dict.fromkeys(str(entry.digest) for _, state in states for entry in state):
            content = await self.contents.get(tenant, digest)
            if content is not None and await self._is_sound(content.stored, digest):
                _put(file, {"content": digest}, content.stored)
                sizes[digest] = len(content.stored)
        keys = lost = 0
        for scope, state in states:
            sound_entries = [entry for entry in state if entry.digest in sizes]
            _put(file, {"scope": scope.name, "entries": [_fields(entry) for entry in sound_entries]})
            keys, lost = keys + len(sound_entries), lost + len(state) - len(sound_entries)
        _put(file, {"end": keys})
        return Archived(len(states), keys, len(sizes), sum(sizes.values()), lost)

    async def read(self, tenant: str, file: BinaryIO) -> Archived:
        """Set every key of the file, one write for each scope; other keys stay. Only keys that change are counted.

        CWM-1003 if the file is no archive, CWM-3007 if an immutable key has another value here, CWM-4004 if the
        archive is damaged; scopes before the error stay set.
        """
        records = _records(file)
        _require_header(records)
        holder = f"importing:{uuid4().hex}"
        until = self.clock.now() + _IMPORT_HOLD
        stored_digests: set[str] = set()
        scopes = keys = size = 0
        ended = False
        for record, body in records:
            if "end" in record:
                ended = True
            elif (digest := record.get("content")) is not None:
                if not await self._is_sound(body, digest):
                    raise _damaged()
                await self.contents.put(tenant, digest, body, holder, until, self.quota_bytes)
                stored_digests.add(digest)
                size += len(body)
            elif not _is_answers(record):
                scope = _scope(tenant, record)
                writes = self._writes(record, stored_digests, await self._state(scope))
                await self.index.write(scope, writes, _AUTHOR, keep=self.versions)
                scopes, keys = scopes + 1, keys + len(writes)
        for digest in stored_digests:
            await self.contents.release(tenant, digest, holder)
        if not ended:
            raise _damaged()
        return Archived(scopes, keys, len(stored_digests), size)

    async def _state(self, scope: ContextScope) -> list[Entry]:
        head = await self.index.head(scope)
        return list(await self.index.state(scope, head.version))

    async def _is_sound(self, stored: bytes, digest: str) -> bool:
        return await aside(plain_size(stored), lambda: plain_form(stored, digest) is not None)

    def _writes(self, record: dict[str, Any], stored_digests: set[str], state: list[Entry]) -> list[Write]:
        """The writes of one record, without keys that have expired since or are equal already."""
        now, current = self.clock.now(), [_fields(entry) for entry in state]
        try:
            by_key = {fields["key"]: fields for fields in current}
            writes = [_write(fields) for fields in record["entries"] if by_key.get(fields["key"]) != fields]
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged() from error
        if any(write.digest not in stored_digests for write in writes):
            raise _damaged()
        return [write for write in writes if write.expires_at is None or write.expires_at > now]


def _require_header(records: Iterator[tuple[dict[str, Any], bytes]]) -> None:
    try:
        header, _ = next(records, ({}, b""))
    except StorageCorruptionError:
        header = {}
    if header.get("cwm_context") != _FORMAT:
        raise InvalidParameterError("The file is not an archive of shared context in this version's format.")


def _put(file: BinaryIO, record: dict[str, Any], body: bytes = b"") -> None:
    line = json.dumps({**record, "bytes": len(body)}, ensure_ascii=False, separators=(",", ":"))
    file.write(line.encode() + b"\n" + body)


def _records(file: BinaryIO) -> Iterator[tuple[dict[str, Any], bytes]]:
    while line := file.readline(_MAX_LINE_BYTES):
        try:
            record = json.loads(line)
            size = int(record["bytes"])
        except (ValueError, TypeError, KeyError) as error:
            raise _damaged() from error
        if not line.endswith(b"\n") or not 0 <= size <= _MAX_CONTENT_BYTES:
            raise _damaged()
        body = file.read(size)
        if len(body) != size:
            raise _damaged()
        yield record, body


def _fields(entry: Entry) -> dict[str, Any]:
    # In milliseconds, the precision of every store.
    expires_at = None if entry.expires_at is None else round(entry.expires_at.timestamp() * 1000)
    return {
        "key": entry.key,
        "digest": entry.digest,
        "size": entry.size,
        "priority": entry.priority,
        "immutable": entry.immutable,
        "expires_at": expires_at,
    }


def _write(fields: dict[str, Any]) -> Write:
    expires_at = fields["expires_at"]
    return Write(
        require_key(str(fields["key"])),
        str(fields["digest"]),
        int(fields["size"]),
        int(fields["priority"]),
        bool(fields["immutable"]),
        expires_at=None if expires_at is None else datetime.fromtimestamp(expires_at / 1000, UTC),
    )


def _scope(tenant: str, record: dict[str, Any]) -> ContextScope:
    scope = scope_of(tenant, "", str(record.get("scope")))
    if scope.is_private:
        raise _damaged()
    return scope


def _is_answers(record: dict[str, Any]) -> bool:
    """Older archives also contain cached answers of upstreams."""
    return str(record.get("scope")).startswith(f"{ANSWERS}:")


def _damaged() -> StorageCorruptionError:
    return StorageCorruptionError("The archive is damaged: its records and their contents do not match.")
