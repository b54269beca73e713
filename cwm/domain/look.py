"""Looks: what a model expects next at places spread over a context, read from the context's KV.

A place lies one token behind a chunk. What is expected there depends on the KV of every chunk before it, most of all on that of
the chunk right before it. Behind the last chunk a look has several probes: the context's own next token, and others in its place.
Each of them sees the whole context by itself, so that wrong KV changes nearly all of them, and noise of a batch's shape one at most.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

CANDIDATES: Final = 10
"""How many of the likeliest tokens a look has at each place."""

EXACT_NATS: Final = 0.0002
"""Sums in another order move a log-probability of float32 by 0.00004 at most, as measured; KV behind another beginning by 0.0005 even thousands of tokens later."""

_FAR_NATS: Final = 99.0
_LAST_PLACES: Final = 4
_DIGITS: Final = 5


@dataclass(frozen=True, slots=True)
class Look:
    """``places``: how many tokens of the context the model has read at each, in rising order; the probes are numbered on from the last.

    ``top``: the likeliest next tokens at each place, log-probability in nats by token id.
    """

    places: tuple[int, ...]
    top: tuple[Mapping[int, float], ...]

    def at(self, places: Collection[int]) -> Look:
        """The part of the look at these places, as far as it has them."""
        pairs = [(place, top) for place, top in zip(self.places, self.top, strict=True) if place in places]
        return Look(tuple(place for place, _ in pairs), tuple(top for _, top in pairs))

    def as_dict(self) -> dict[str, Any]:
        rounded = [{token: round(value, _DIGITS) for token, value in top.items()} for top in self.top]
        return {"places": list(self.places), "top": rounded}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        top = tuple({int(token): float(value) for token, value in each.items()} for each in data["top"])
        return cls(tuple(data["places"]), top)


@dataclass(frozen=True, slots=True)
class Distance:
    """How far looks at one context are apart, over ``places`` places that they share.

    ``differing``: how many places differ by more than :data:`EXACT_NATS`, ``first`` the first of them in tokens, and ``agreed`` the
    tokens before the place in front of it: up to there no place differs. ``largest`` and ``mean`` of the changes of a log-probability, in
    nats, and ``last`` that of the last place, which sees the whole context.
    """

    places: int = 0
    differing: int = 0
    largest: float = 0.0
    mean: float = 0.0
    first: int | None = None
    agreed: int = 0
    last: float = 0.0

    @property
    def is_exact(self) -> bool:
        return self.largest <= EXACT_NATS

    @property
    def share(self) -> float:
        return self.differing / self.places if self.places else 0.0


def places_of(token_count: int, chunk_size: int, most: int) -> tuple[int, ...]:
    """At most ``most`` places in a context: one token behind each chunk, or behind chunks spread evenly and the last few."""
    chunks = max(0, (token_count - 1) // chunk_size)
    numbers: Collection[int] = range(1, chunks + 1)
    if chunks > most:
        last = min(_LAST_PLACES, most)
        numbers = {*range(chunks - last + 1, chunks + 1), *_spread(chunks - last, most - last)}
    return tuple(number * chunk_size + 1 for number in sorted(numbers))


def probes_of(token_ids: Sequence[int], count: int) -> tuple[int, ...]:
    """Tokens to put in place of the one behind the last chunk: some of the context's own, which every vocabulary has."""
    return tuple(token_ids[number * len(token_ids) // (count + 1)] for number in range(count))


def numbered(places: Sequence[int], probes: Sequence[int]) -> tuple[int, ...]:
    """The numbers of a look's places and of its probes."""
    return (*places, *range(places[-1] + 1, places[-1] + 1 + len(probes)))


def _spread(last: int, count: int) -> list[int]:
    """At most ``count`` numbers from 1 to ``last``, spread evenly, ``last`` among them."""
    count = min(last, count)
    return [round(last * (number + 1) / count) for number in range(count)]


def distance(
    before: Sequence[Look], after: Sequence[Look], places: Collection[int] | None = None
) -> Distance:
    """How far two sets of looks are apart, at ``places`` (None: all): at each place the least that any pair of them differs.

    Noise of a batch's shape changes from look to look, damage does not.
    """
    least: dict[int, float] = {}
    for one in before:
        expected = dict(zip(one.places, one.top, strict=True))
        for other in after:
            for place, top in zip(other.places, other.top, strict=True):
                if place in expected and (places is None or place in places):
                    change = _change(expected[place], top)
                    least[place] = min(change, least.get(place, change))
    return _distance(sorted(least.items()))


def _distance(changes: Iterable[tuple[int, float]]) -> Distance:
    changes = list(changes)
    if not changes:
        return Distance()
    differing = [place for place, change in changes if change > EXACT_NATS]
    first = differing[0] if differing else None
    values = [change for _, change in changes]
    return Distance(
        len(changes),
        len(differing),
        round(max(values), 6),
        round(sum(values) / len(values), 6),
        first,
        max((place - 1 for place, _ in changes if first is None or place < first), default=0),
        round(values[-1], 6),
    )


def _change(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """The largest change among the candidates that both list; of those that one lists alone nothing is known."""
    shared = before.keys() & after.keys()
    return max((abs(before[token] - after[token]) for token in shared), default=_FAR_NATS)
