"""Reduces a JSON value to a given detail, as far as its schema allows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple

from cwm.domain.preview import Unit
from cwm.domain.tool_policy import PreviewKind
from cwm.services.results.preview.detail import DEEPEST, RECORD_FIELDS, SPINE, Detail
from cwm.services.results.preview.masks import NOTHING, Mask
from cwm.services.results.preview.omitted import EACH, Omitted, Path
from cwm.services.results.preview.ranks import rank
from cwm.services.results.preview.shapes import Shape
from cwm.services.results.preview.text.texts import Text
from cwm.services.results.preview.validity import ValuePath

_KEPT_TEXTS: Final = 200
"""Texts of at least this many characters are analysed once and reused in the next reduction."""
_REQUIRED_TEXT: Final = 40
_GONE: Final = object()
"""No part of the value was selected."""


class Pin(IntEnum):
    """A restriction at a place where a reduction turned out to be invalid by the schema."""

    FIELDS = 1
    """No field may be left out."""
    WHOLE = 2


class TooLargeError(Exception):
    """A reduction exceeded its number of characters."""


class Spot(NamedTuple):
    """A place in the value, with the schema's demands (``shape``) and the selection (``mask``) there.

    ``depth`` counts containers, from the root or from the enclosing item of an outermost list.
    """

    path: Path
    shape: Shape | None
    mask: Mask | None
    depth: int
    in_item: bool


@dataclass(slots=True)
class Reduction:
    """One value, which can be reduced repeatedly. ``longest``: length of the longest list that ``items`` applied to."""

    value: Any
    shape: Shape | None = None
    mask: Mask | None = None
    kind: PreviewKind = PreviewKind.AUTO
    keywords: Sequence[str] = ()
    longest: int = 0
    matched: bool = False
    """Whether the value has anything that the mask selects."""
    _pins: dict[Path, Pin] = field(default_factory=dict)
    _maps: dict[Path, None] = field(default_factory=dict)
    _texts: dict[int, Text] = field(default_factory=dict)
    _detail: Detail = field(default_factory=lambda: Detail(None, 0))
    _omitted: Omitted = field(default_factory=Omitted)
    _room: int = 0

    def to(self, detail: Detail, room: int) -> tuple[Any, Omitted]:
        """The value at this detail. Raises TooLargeError as soon as it certainly exceeds ``room`` characters."""
        self._detail, self._omitted, self._room, self.longest = detail, Omitted(), room, 0
        reduced = self._any(self.value, Spot((), self.shape, self.mask, 0, False))
        return (type(self.value)() if reduced is _GONE else reduced), self._omitted

    def pin(self, places: Iterable[ValuePath]) -> None:
        """Restrict further reductions at the places where the last one was not valid."""
        for path, record in dict.fromkeys(self._located(place) for place in places):
            place = path
            while place and self._pins.get(place) is Pin.WHOLE:
                place = place[0]
            fields = (record or place is not path) and place not in self._pins
            self._pins[place] = Pin.FIELDS if fields else Pin.WHOLE

    @property
    def pinned_whole(self) -> bool:
        return self._pins.get(()) is Pin.WHOLE

    def _located(self, place: ValuePath) -> tuple[Path, bool]:
        """The path of a place, and whether an object is there."""
        path: Path = ()
        value = self.value
        for name in place:
            path = (path, EACH if isinstance(name, int) or path in self._maps else name)
            inside = isinstance(value, dict) and name in value
            inside = inside or (isinstance(value, list) and isinstance(name, int) and name < len(value))
            value = value[name] if inside else None
        return path, isinstance(value, dict)

    def _any(self, value: Any, spot: Spot) -> Any:
        pinned = self._pins.get(spot.path) if self._pins else None
        if pinned is Pin.WHOLE or (spot.shape is not None and spot.shape.fixed):
            return self._whole(value)
        if isinstance(value, dict):
            return self._object(value, spot, every=pinned is Pin.FIELDS)
        if isinstance(value, list):
            return self._list(value, spot)
        if spot.mask is not None and spot.mask is not NOTHING:
            return _GONE
        if isinstance(value, str):
            return self._text(value, spot)
        self._take(1)
        return value

    def _take(self, characters: int) -> None:
        self._room -= characters
        if self._room < 0:
            raise TooLargeError

    def _whole(self, value: Any) -> Any:
        """The unchanged value, after its minimum size is taken from the room."""
        waiting = [value]
        while waiting:
            one = waiting.pop()
            if isinstance(one, dict):
                self._take(2 + 4 * len(one))
                waiting += one.values()
            elif isinstance(one, list):
                self._take(2 + len(one))
                waiting += one
            else:
                self._take(len(one) + 2 if isinstance(one, str) else 1)
        return value

    def _text(self, value: str, spot: Spot) -> str:
        limit, shape = self._detail.text, spot.shape
        if spot.mask is NOTHING:
            limit = _REQUIRED_TEXT
        if limit is not None and len(value) > limit and not (shape and shape.fixed_text):
            least = shape.least_length if shape else 0
            short = self._looked_at(value).shorten(max(limit, 2 * least))
            if short is not None and len(short.text) >= least:
                self._omitted.add(spot.path, short.unit, short.shown, short.total)
                value = short.text
        self._take(len(value) + 2)
        return value

    def _looked_at(self, value: str) -> Text:
        if len(value) < _KEPT_TEXTS:
            return Text(value, self.kind, self.keywords)
        if id(value) not in self._texts:
            self._texts[id(value)] = Text(value, self.kind, self.keywords)
        return self._texts[id(value)]

    def _list(self, value: list[Any], spot: Spot) -> Any:
        shape = spot.shape
        if shape is not None and shape.fixed_list:
            return self._whole(value)
        item_count = self._allowed(len(value), spot, shape.least_items if shape else 0)
        backwards = self.kind is PreviewKind.TAIL and not (shape and shape.positional)
        first = len(value) - item_count if backwards else 0
        self._take(2)
        items = list(self._items(value, range(first, first + item_count), spot))
        if not items and value and spot.mask is not None and spot.mask is not NOTHING and self._detail.items:
            return _GONE
        if len(items) < len(value):
            self._omitted.add(spot.path, Unit.ITEMS, len(items), len(value))
        return items

    def _items(self, value: list[Any], indices: Iterable[int], spot: Spot) -> Iterator[Any]:
        shape = spot.shape
        path, depth = (spot.path, EACH), spot.depth + 1 if spot.in_item else 0
        for index in indices:
            self._take(1)
            if shape is not None and shape.whole_items:
                yield self._whole(value[index])
                continue
            inner = Spot(path, shape.item(index) if shape else None, spot.mask, depth, True)
            if (item := self._any(value[index], inner)) is not _GONE:
                yield item

    def _allowed(self, length: int, spot: Spot, least: int) -> int:
        """How many items of a list, or entries of a map, may be shown."""
        if spot.mask is NOTHING or spot.depth > DEEPEST:
            return min(length, least)
        limit = self._detail.nested
        if not spot.in_item:
            limit = self._detail.items
            self.longest = max(self.longest, length)
        return min(length, max(limit, least))

    def _object(self, value: dict[str, Any], spot: Spot, *, every: bool) -> Any:
        self._take(2)
        if not every and self._paged(value, spot):
            return self._map(value, spot)
        required = spot.shape.required if spot.shape else ()
        fields: dict[str, Any] = {}
        left_out: list[str] = []
        for name, one in value.items():
            reduced = self._field(name, one, spot, must=every or name in required)
            if reduced is _GONE:
                left_out.append(name)
            else:
                self._take(len(name) + 4)
                fields[name] = reduced
        if left_out:
            if not fields and spot.mask is not None and spot.mask is not NOTHING:
                return _GONE
            least = max(spot.shape.least_fields if spot.shape else 0, spot.mask is None)
            if len(fields) < least:
                fields = self._with_enough(value, fields, least, spot)
                left_out = [name for name in value if name not in fields]
            self._omitted.add_fields(spot.path, fields, left_out)
        return fields

    def _field(self, name: str, value: Any, spot: Spot, *, must: bool) -> Any:
        """The reduced value of a field, or _GONE to leave it out unless it must stay."""
        if spot.mask is None and not must and self._unimportant(name, value, spot):
            return _GONE
        depth = spot.depth + isinstance(value, (dict, list))
        return self._inside(name, value, spot, (spot.path, name), depth, must=must)

    def _inside(
        self, name: str, value: Any, spot: Spot, path: Path, depth: int, *, in_item: bool = False, must: bool
    ) -> Any:
        """The reduced value at ``name`` of an object; an entry of a map counts as an item."""
        shape = spot.shape.field(name) if spot.shape else None
        mask = spot.mask
        if mask is not None:
            mask = mask.at(name)
            if mask is None:
                mask = NOTHING
            elif mask.selects:
                mask, self.matched = None, True
        in_item = in_item or spot.in_item
        reduced = _GONE
        if mask is not NOTHING and depth <= DEEPEST:
            reduced = self._any(value, Spot(path, shape, mask, depth, in_item))
        if reduced is _GONE and must:
            return self._any(value, Spot(path, shape, NOTHING, depth, in_item))
        return reduced

    def _unimportant(self, name: str, value: Any, spot: Spot) -> bool:
        if value and isinstance(value, (dict, list)):
            deepest = self._detail.depth if spot.in_item else max(self._detail.depth, SPINE)
            return spot.depth >= deepest
        return rank(name, value) > self._detail.rank

    def _with_enough(
        self, value: dict[str, Any], fields: dict[str, Any], least: int, spot: Spot
    ) -> dict[str, Any]:
        """``fields`` with further ones up to ``least``, those of the best rank first."""
        more = sorted(
            (name for name in value if name not in fields), key=lambda name: rank(name, value[name])
        )
        names = dict.fromkeys([*fields, *more[: least - len(fields)]])
        return {
            name: fields[name] if name in fields else self._field(name, value[name], spot, must=True)
            for name in value
            if name in names
        }

    def _paged(self, value: dict[str, Any], spot: Spot) -> bool:
        """Whether to show the first entries instead of the most important fields."""
        if spot.mask is not None and not spot.mask.wild:
            return False
        return self._detail.entries or len(value) > RECORD_FIELDS

    def _map(self, value: dict[str, Any], spot: Spot) -> Any:
        """Page the entries of an object like a list: if its keys are data, or at the last level of detail."""
        shape = spot.shape
        is_map = len(value) > RECORD_FIELDS
        depth = spot.depth + 1
        if is_map:
            self._maps[spot.path] = None
            depth = spot.depth if spot.in_item else 0
        field_count = self._allowed(len(value), spot, shape.least_fields if shape else 0)
        required = shape.required if shape else frozenset[str]()
        waiting = len(required.intersection(value))
        fields: dict[str, Any] = {}
        for name, one in value.items():
            must = name in required
            if len(fields) >= field_count and not waiting:
                break
            waiting -= must
            if len(fields) < field_count - waiting or must:
                must = must or (shape is not None and len(fields) < shape.least_fields)
                path = (spot.path, EACH if is_map else name)
                reduced = self._inside(name, one, spot, path, depth, in_item=is_map, must=must)
                if reduced is not _GONE:
                    self._take(len(name) + 4)
                    fields[name] = reduced
        if not fields and spot.mask is not None and spot.mask is not NOTHING:
            return _GONE
        if len(fields) < len(value):
            self._omitted.add(spot.path, Unit.ENTRIES, len(fields), len(value))
        return fields
