"""Local copies of scopes of shared context: one immutable map for each version, with shared structure."""

from __future__ import annotations

import asyncio
import sys
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeAlias

from immutables import Map

from cwm.domain.shared_context import Entry, Head, Scope
from cwm.ports.context_index import ContextIndex, Delta

_VERSIONS_KEPT: Final = 32
# An estimate for a node of the map, a slot in the list of keys, or an object of an entry.
_NODE_BYTES: Final = 48

Entries: TypeAlias = "Map[str, Entry]"


@dataclass(frozen=True, slots=True)
class View:
    """All entries of a scope at one version, including expired ones."""

    head: Head
    entries: Entries

    def entry(self, key: str) -> Entry | None:
        entry = self.entries.get(key)
        return entry if entry is not None and entry.is_there(self.head.now) else None


@dataclass(slots=True)
class _Seen:
    """The last versions of one scope, the newest last, and the sorted keys of the newest.

    ``replaced``: for each version, how many entries of the version before it are not in it. If ``outgrown``, the scope
    does not fit in memory and no versions are kept.
    """

    maps: OrderedDict[int, Entries] = field(default_factory=OrderedDict)
    replaced: dict[int, int] = field(default_factory=dict)
    outgrown: bool = False
    size: int = 0
    keys: list[str] | None = None
    refreshing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def version(self) -> int:
        return next(reversed(self.maps), 0)

    def add(self, version: int, entries: Entries, replaced: int) -> None:
        self.replaced[version] = replaced if self.maps else 0
        self.maps[version] = entries
        self.keys, self.outgrown = None, False

    def drop_oldest(self) -> None:
        del self.replaced[self.maps.popitem(last=False)[0]]
        if self.maps:
            self.replaced[next(iter(self.maps))] = 0

    def drop_all(self) -> None:
        self.maps.clear()
        self.replaced.clear()
        self.keys = None


class ContextViews:
    """Asks the shared store for a scope's version and loads only the changes since the last one it has.

    ``reserve`` is called with the total size in bytes whenever it changes. Above ``most_bytes`` the scopes that were
    unused for longest are dropped. A scope larger than that is not kept: its keys are read from the store.
    """

    def __init__(self, index: ContextIndex, most_bytes: int, reserve: Callable[[int], None]) -> None:
        self.index = index
        self.most_bytes = most_bytes
        self._reserve = reserve
        self._seen: OrderedDict[Scope, _Seen] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._seen)

    async def now(self, scope: Scope) -> View:
        """The current state, with every write that any replica acknowledged before this call."""
        head = await self.index.head(scope)
        seen = self._seen.get(scope)
        if seen is None or seen.version != head.version or not seen.maps:
            return await self._refreshed(scope, head)
        self._seen.move_to_end(scope)
        return View(head, seen.maps[head.version])

    async def entry(self, scope: Scope, key: str) -> tuple[int, Entry | None]:
        """The version of the scope and the key's current entry."""
        seen = self._seen.get(scope)
        if seen is None or not seen.outgrown:
            view = await self.now(scope)
            return view.head.version, view.entry(key)
        self._seen.move_to_end(scope)
        while True:
            head = await self.index.head(scope)
            entry = await self.index.past(scope, key, head.version)
            # None is wrong if the key was overwritten and this version trimmed between the two reads.
            if entry is not None or (await self.index.head(scope)).floor <= head.version:
                return head.version, entry

    def past(self, scope: Scope, version: int) -> Entries | None:
        """The whole state at ``version``, or None if this process does not have it."""
        seen = self._seen.get(scope)
        return None if seen is None else seen.maps.get(version)

    def keys(self, scope: Scope, view: View, prefix: str, after: str | None) -> list[str]:
        """The sorted keys that start with ``prefix`` and sort after ``after``."""
        seen = self._seen.get(scope)
        newest = seen is not None and seen.version == view.head.version
        if seen is not None and newest and seen.keys is not None:
            keys = seen.keys
        else:
            keys = sorted(view.entries)
            if seen is not None and newest:
                seen.keys = keys
        start = bisect_left(keys, prefix)
        if after is not None and after >= prefix:
            start = bisect_left(keys, after)
            start += start < len(keys) and keys[start] == after
        end = bisect_left(keys, prefix + chr(sys.maxunicode), lo=start) if prefix else len(keys)
        return keys[start:end]

    def forget(self, scope: Scope) -> None:
        if (seen := self._seen.pop(scope, None)) is not None:
            self._account(-seen.size)

    async def _refreshed(self, scope: Scope, at_least: Head) -> View:
        seen = self._seen.setdefault(scope, _Seen())
        async with seen.refreshing:
            if not seen.maps or seen.version != at_least.version:
                # An older head was read before this copy was refreshed, or the store has lost data.
                delta = await self.index.since(scope, seen.version)
                if delta.head.version < seen.version:
                    seen.drop_all()
                entries = _applied(seen, delta)
                self._keep(scope, seen, delta, entries)
                return View(delta.head, entries)
            return View(at_least, seen.maps[at_least.version])

    def resize(self, most_bytes: int) -> None:
        """Change the limit and drop scopes that do not fit any more."""
        self.most_bytes = most_bytes
        for scope in [scope for scope, seen in self._seen.items() if seen.outgrown or seen.size > most_bytes]:
            self.forget(scope)
        self._make_room(None)

    def _keep(self, scope: Scope, seen: _Seen, delta: Delta, entries: Entries) -> None:
        before = seen.size
        if delta.head.version not in seen.maps:
            replaced = len(seen.maps[seen.version]) if delta.whole and seen.maps else len(delta.entries)
            seen.add(delta.head.version, entries, replaced)
        each = _entry_bytes(entries)
        while len(seen.maps) > _VERSIONS_KEPT or (len(seen.maps) > 1 and _size(seen, each) > self.most_bytes):
            seen.drop_oldest()
        if _size(seen, each) > self.most_bytes:
            seen.drop_all()
            seen.outgrown = True
        seen.size = _size(seen, each)
        if self._seen.get(scope) is seen:
            self._seen.move_to_end(scope)
            self._account(seen.size - before)
            self._make_room(scope)

    def _make_room(self, but: Scope | None) -> None:
        while self._size > self.most_bytes and len(self._seen) > 1:
            oldest = next(iter(self._seen))
            if oldest == but:
                return
            self.forget(oldest)

    def _account(self, more: int) -> None:
        self._size += more
        self._reserve(self._size)


def _applied(seen: _Seen, delta: Delta) -> Entries:
    now: datetime = delta.head.now
    if delta.whole or not seen.maps:
        return Map({entry.key: entry for entry in delta.entries if entry.is_there(now)})
    changed = seen.maps[seen.version].mutate()
    for entry in delta.entries:
        if entry.is_there(now):
            changed[entry.key] = entry
        else:
            changed.pop(entry.key, None)
    return changed.finish()


def _entry_bytes(entries: Entries) -> float:
    """The mean size of an entry, from a sample of 64: entries of one scope are similar."""
    sample = [entry for _, entry in zip(range(64), entries.values(), strict=False)]
    return sum(_entry_size(entry) for entry in sample) / len(sample) if sample else _NODE_BYTES


def _size(seen: _Seen, each: float) -> int:
    """Estimated bytes: the newest entries, those only in older versions, and a path of nodes for each version."""
    newest = len(seen.maps[seen.version]) if seen.maps else 0
    kept = newest + sum(seen.replaced.values())
    return _NODE_BYTES + int(each * kept) + 32 * _NODE_BYTES * len(seen.maps)


def _entry_size(entry: Entry) -> int:
    parts = (entry, entry.key, entry.digest, entry.written_at, entry.expires_at, entry.author, entry.size)
    return _NODE_BYTES + sum(sys.getsizeof(part) for part in parts if part is not None)
