"""References in arguments: ``{"$cwm": "<handle>"}`` for a stored result's text, ``"<handle>#/json/pointer"`` for a value.

They pass a value from one tool to another without sending it through a model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from cwm.domain.budgets import References
from cwm.domain.errors import InvalidParameterError
from cwm.domain.principal import Principal
from cwm.services.audit.journal import Journal
from cwm.services.results.results import Results
from cwm.threads import in_thread

KEY: Final = "$cwm"

_OPERATION: Final = "result_reference"
_REFERENCE: Final = re.compile(
    r"(?P<uri>cwm://results/)?(?P<handle>[A-Za-z0-9_]{1,64})(?:/(?P<part>[0-9]{1,4}))?(?:#(?P<pointer>(?:/.*)?))?",
    re.DOTALL | re.ASCII,
)
_LONGEST: Final = 2_048
_LONGEST_NAME: Final = 128


@dataclass(frozen=True, slots=True)
class Reference:
    """A parsed reference. ``pointer``: a JSON Pointer (RFC 6901), empty for the whole value, None for the original text.

    ``part`` None means the first part, or with a pointer the first JSON part.
    """

    handle: str
    part: int | None
    pointer: str | None

    @classmethod
    def read(cls, value: Mapping[str, Any], place: str) -> Reference:
        """Parse a reference. Raises InvalidParameterError if it is malformed."""
        if len(value) > 1:
            raise InvalidParameterError(
                f"{place}: an object with '{KEY}' is a by-reference argument and has no other fields.",
                field=place,
            )
        text = value[KEY]
        match = _REFERENCE.fullmatch(text) if isinstance(text, str) else None
        if match is None or len(text) > _LONGEST:
            raise InvalidParameterError(
                f"{place}: a by-reference argument is a handle, then / and a part if it is not the first, then, for a value "
                "instead of the text, # and a JSON Pointer.",
                field=place,
            )
        pointer, part = match["pointer"], match["part"]
        # In a URI the pointer is percent-encoded.
        return cls(
            match["handle"],
            None if part is None else int(part),
            unquote(pointer) if pointer and match["uri"] else pointer,
        )


class ByReference:
    """Replaces references with the stored values."""

    def __init__(self, results: Results, journal: Journal) -> None:
        self._results = results
        self._journal = journal

    async def filled(
        self,
        principal: Principal,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        allowed: bool,
        bounds: References,
    ) -> dict[str, Any]:
        """``arguments`` with every reference replaced; inserted values are not searched for further references.

        Raises CWM-1003 if the tool takes no references, if one is malformed, if there are too many or they are too large;
        also what :meth:`Results.resolve` raises.
        """
        filling = _Filling(self._results, principal, bounds)
        async with self._journal.entry(principal, _OPERATION) as details:
            details.update(tool=tool[:_LONGEST_NAME], handles=filling.handles)
            _require_allowed(tool, bounds, allowed=allowed)
            filled = {
                name: await filling.value(name[:_LONGEST_NAME], value) for name, value in arguments.items()
            }
            details.update(references=filling.count, bytes=filling.size)
        return filled


def have_reference(arguments: Mapping[str, Any]) -> bool:
    """Whether the values of the arguments contain a reference. Argument names do not count: they are the tool's own."""
    return any(map(_has_reference, arguments.values()))


def _has_reference(value: Any) -> bool:
    if isinstance(value, dict):
        return KEY in value or any(map(_has_reference, value.values()))
    return isinstance(value, list) and any(map(_has_reference, value))


@dataclass(slots=True)
class _Filling:
    """Replaces the references of one call. ``size`` is in bytes of JSON."""

    results: Results
    principal: Principal
    bounds: References
    count: int = 0
    size: int = 0
    handles: list[str] = field(default_factory=list)
    _values: dict[Reference, tuple[Any, int]] = field(default_factory=dict)

    async def value(self, place: str, value: Any) -> Any:
        if isinstance(value, list):
            return [await self.value(_inside(place, index), each) for index, each in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if KEY in value:
            return await self._resolved(place, Reference.read(value, place))
        return {name: await self.value(_inside(place, name), each) for name, each in value.items()}

    async def _resolved(self, place: str, reference: Reference) -> Any:
        self.count += 1
        if self.count > self.bounds.most:
            raise InvalidParameterError(
                f"{place}: a call takes at most {self.bounds.most} by-reference arguments.", field=place
            )
        if reference not in self._values:
            if reference.handle not in self.handles:
                self.handles.append(reference.handle)
            value = await self.results.resolve(
                self.principal, reference.handle, reference.pointer, reference.part
            )
            self._values[reference] = value, await in_thread(_size, value)
        value, size = self._values[reference]
        self.size += size
        if self.size > self.bounds.most_bytes:
            raise InvalidParameterError(
                f"{place}: the by-reference arguments of a call come to at most {self.bounds.most_bytes:,} bytes.",
                field=place,
            )
        return value


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def _inside(place: str, name: str | int) -> str:
    return f"{place}.{name}"[:_LONGEST_NAME]


def _require_allowed(tool: str, bounds: References, *, allowed: bool) -> None:
    if not bounds.enabled:
        raise InvalidParameterError(
            f"By-reference arguments ('{KEY}') are switched off on this gateway: results.references.enabled in "
            "cwm.yaml.",
            field=KEY,
        )
    if not allowed:
        raise InvalidParameterError(
            f"{tool[:_LONGEST_NAME]} takes no by-reference arguments ('{KEY}'). The gateway's operator can allow it: "
            f"tools.{tool[:_LONGEST_NAME]}.references: true in cwm.yaml.",
            field=KEY,
        )
