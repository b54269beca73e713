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

from cwm.domain.shared_context import ContextScope, Entry, Head
from cwm.ports.context_index import ContextIndex, Delta

_MAX_VERSIONS: Final = 32
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
class _ScopeCopy:
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
        self._copies: OrderedDict[ContextScope, _ScopeCopy] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._copies)

    async def now(self, scope: ContextScope) -> View:
        """The current state, with every write that any replica acknowledged before this call."""
        head = await self.index.head(scope)
        copy = self._copies.get(scope)
        if copy is None or copy.version != head.version or not copy.maps:
            return await self._refreshed(scope, head)
        self._copies.move_to_end(scope)
        return View(head, copy.maps[head.version])

    async def entry(self, scope: ContextScope, key: str) -> tuple[int, Entry | None]:
        """The version of the scope and the key's current entry."""
        copy = self._copies.get(scope)
        if copy is None or not copy.outgrown:
            view = await self.now(scope)
            return view.head.version, view.entry(key)
        self._copies.move_to_end(scope)
        while True:
            head = await self.index.head(scope)
            entry = await self.index.past(scope, key, head.version)
            # None is wrong if the key was overwritten and this version trimmed between the two reads.
            if entry is not None or (await self.index.head(scope)).floor <= head.version:
                return head.version, entry

    def past(self, scope: ContextScope, version: int) -> Entries | None:
        """The whole state at ``version``, or None if this process does not have it."""
        copy = self._copies.get(scope)
        return None if copy is None else copy.maps.get(version)

    def keys(self, scope: ContextScope, view: View, prefix: str, after: str | None) -> list[str]:
        """The sorted keys that start with ``prefix`` and sort after ``after``."""
        copy = self._copies.get(scope)
        newest = copy is not None and copy.version == view.head.version
        if copy is not None and newest and copy.keys is not None:
            keys = copy.keys
        else:
            keys = sorted(view.entries)
            if copy is not None and newest:
                copy.keys = keys
        start = bisect_left(keys, prefix)
        if after is not None and after >= prefix:
            start = bisect_left(keys, after)
            start += start < len(keys) and keys[start] == after
        end = bisect_left(keys, prefix + chr(sys.maxunicode), lo=start) if prefix else len(keys)
        return keys[start:end]

    def forget(self, scope: ContextScope) -> None:
        if (copy := self._copies.pop(scope, None)) is not None:
            self._account(-copy.size)

    async def _refreshed(self, scope: ContextScope, at_least: Head) -> View:
        copy = self._copies.setdefault(scope, _ScopeCopy())
        async with copy.refreshing:
            if not copy.maps or copy.version != at_least.version:
                # An older head was read before this copy was refreshed, or the store has lost data.
                delta = await self.index.since(scope, copy.version)
                if delta.head.version < copy.version:
                    copy.drop_all()
                entries = _apply(copy, delta)
                self._keep(scope, copy, delta, entries)
                return View(delta.head, entries)
            return View(at_least, copy.maps[at_least.version])

    def resize(self, most_bytes: int) -> None:
        """Change the limit and drop scopes that do not fit any more."""
        self.most_bytes = most_bytes
        for scope in [
            scope for scope, copy in self._copies.items() if copy.outgrown or copy.size > most_bytes
        ]:
            self.forget(scope)
        self._make_room(None)

    def _keep(self, scope: ContextScope, copy: _ScopeCopy, delta: Delta, entries: Entries) -> None:
        before = copy.size
        if delta.head.version not in copy.maps:
            replaced = len(copy.maps[copy.version]) if delta.whole and copy.maps else len(delta.entries)
            copy.add(delta.head.version, entries, replaced)
        entry_bytes = _entry_bytes(entries)
        while len(copy.maps) > _MAX_VERSIONS or (
            len(copy.maps) > 1 and _size(copy, entry_bytes) > self.most_bytes
        ):
            copy.drop_oldest()
        if _size(copy, entry_bytes) > self.most_bytes:
            copy.drop_all()
            copy.outgrown = True
        copy.size = _size(copy, entry_bytes)
        if self._copies.get(scope) is copy:
            self._copies.move_to_end(scope)
            self._account(copy.size - before)
            self._make_room(scope)

    def _make_room(self, current: ContextScope | None) -> None:
        while self._size > self.most_bytes and len(self._copies) > 1:
            oldest = next(iter(self._copies))
            if oldest == current:
                return
            self.forget(oldest)

    def _account(self, change: int) -> None:
        self._size += change
        self._reserve(self._size)


def _apply(copy: _ScopeCopy, delta: Delta) -> Entries:
    now: datetime = delta.head.now
    if delta.whole or not copy.maps:
        return Map({entry.key: entry for entry in delta.entries if entry.is_there(now)})
    entries = copy.maps[copy.version].mutate()
    for entry in delta.entries:
        if entry.is_there(now):
            entries[entry.key] = entry
        else:
            entries.pop(entry.key, None)
    return entries.finish()


def _entry_bytes(entries: Entries) -> float:
    """The mean size of an entry, from a sample of 64: entries of one scope are similar."""
    sample = [entry for _, entry in zip(range(64), entries.values(), strict=False)]
    return sum(_entry_size(entry) for entry in sample) / len(sample) if sample else _NODE_BYTES


def _size(copy: _ScopeCopy, entry_bytes: float) -> int:
    """Estimated bytes: the newest entries, those only in older versions, and a path of nodes for each version."""
    newest = len(copy.maps[copy.version]) if copy.maps else 0
    entry_count = newest + sum(copy.replaced.values())
    return _NODE_BYTES + int(entry_bytes * entry_count) + 32 * _NODE_BYTES * len(copy.maps)


def _entry_size(entry: Entry) -> int:
    parts = (entry, entry.key, entry.digest, entry.written_at, entry.expires_at, entry.author, entry.size)
    return _NODE_BYTES + sum(sys.getsizeof(part) for part in parts if part is not None)
