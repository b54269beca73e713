"""Canaries: looks at a window's KV, recorded at its freeze, by which a thaw proves that the restored KV is the stored one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from cwm.domain.look import Look


class Origin(StrEnum):
    """Where the KV came from that a canary was recorded on.

    ``computed``: no token of it was loaded. ``inherited``: it rests on loads whose own verdict was good. ``unproven``: it rests on
    loads that nothing proves, or nobody can tell.
    """

    COMPUTED = "computed"
    INHERITED = "inherited"
    UNPROVEN = "unproven"

    @property
    def is_proven(self) -> bool:
        return self is not Origin.UNPROVEN


@dataclass(frozen=True, slots=True)
class Canary:
    """``again``: a second look at the last place and the probes, in which noise is not the same."""

    look: Look
    origin: Origin
    again: Look | None = None

    @property
    def looks(self) -> tuple[Look, ...]:
        return (self.look,) if self.again is None else (self.look, self.again)

    @property
    def sure_places(self) -> tuple[int, ...]:
        """The last place and the probes, which were looked at twice and see the whole context; all places where nothing was."""
        return self.look.places if self.again is None else self.again.places

    def as_dict(self) -> dict[str, Any]:
        """The looks; the origin, which changes, is kept beside them."""
        again = {} if self.again is None else {"again": self.again.as_dict()}
        return {**_OF_OLD, "look": self.look.as_dict(), **again}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], origin: str | None) -> Canary | None:
        """None for a canary of an earlier version: those are tokens decoded after the context, which no look can be compared with."""
        if "look" not in data:
            return None
        again = Look.from_dict(data["again"]) if "again" in data else None
        return cls(Look.from_dict(data["look"]), Origin(origin) if origin else Origin.UNPROVEN, again)


_OF_OLD: Final[Mapping[str, Any]] = {"token_ids": [], "top": []}
"""With these a gateway of the version before reads a canary that it cannot compare, and says ``skipped``."""


def origin_of(resting_tokens: int | None, proven_tokens: int = 0) -> Origin:
    """The origin of a canary on KV whose first ``resting_tokens`` tokens rest on loads, of which the first ``proven_tokens`` are proven.

    ``resting_tokens`` is None for an engine that does not say.
    """
    if resting_tokens == 0:
        return Origin.COMPUTED
    if resting_tokens is not None and resting_tokens <= proven_tokens:
        return Origin.INHERITED
    return Origin.UNPROVEN
