"""Faults in stored chunks: the cases of a run, the detector of each, and the report."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any

from cwm.domain.engine import Tier
from cwm_bench.harness.damage import Fault
from cwm_bench.harness.figures import Section

TIERS = (Tier.REDIS, Tier.DISK)
BLOCKS = range(3, 9)
_ANOTHER = {Fault.SWAP_CHUNKS, Fault.SWAP_WINDOWS, Fault.FORGE}


@dataclass(frozen=True, slots=True)
class ChunkPosition:
    """A chunk: its index, and the number of blocks of its window, which identifies the window."""

    blocks: int
    index: int

    def __str__(self) -> str:
        return f"{self.index + 1}/{self.blocks}"


@dataclass(frozen=True, slots=True)
class Case:
    """``sound_copy``: the other tier keeps its chunks. ``share`` (0 to 1) is the position in the value."""

    fault: Fault
    tier: Tier
    sound_copy: bool
    at: ChunkPosition
    other: ChunkPosition | None
    share: float

    @property
    def other_tier(self) -> Tier:
        return Tier.DISK if self.tier is Tier.REDIS else Tier.REDIS


def deal(count: int, random: Random) -> list[Case]:
    """Cases in rounds: every fault in every tier alone, then each with a sound copy in the other tier."""
    return [_case(*kind, random) for kind in itertools.islice(_kinds(random), count)]


def _kinds(random: Random) -> Iterator[tuple[Fault, Tier, bool]]:
    for sound_copy in itertools.cycle((False, True)):
        kinds = [(fault, tier, sound_copy) for fault in Fault for tier in TIERS]
        random.shuffle(kinds)
        yield from kinds


def _case(fault: Fault, tier: Tier, sound_copy: bool, random: Random) -> Case:
    blocks = random.choice(BLOCKS)
    at = ChunkPosition(blocks, _index(fault, blocks, random))
    other = _another(fault, at, random) if fault in _ANOTHER else None
    return Case(fault, tier, sound_copy, at, other, random.random())


def _index(fault: Fault, blocks: int, random: Random) -> int:
    match fault:
        case Fault.DELETE_FIRST:
            return 0
        case Fault.DELETE_MIDDLE:
            return random.randrange(1, blocks - 1)
        case Fault.DELETE_LAST:
            return blocks - 1
        case _:
            return random.randrange(blocks)


def context_length(blocks: int, chunk_size: int, random: Random) -> int:
    """Tokens of a context with ``blocks`` stored chunks and a tail of any length.

    At least one token more than its chunks hold: the last one was only sampled, and a chunk that it ends has no KV at the
    freeze. It is no chunk of the window then, and a thaw does not miss it.
    """
    return blocks * chunk_size + 1 + random.randrange(chunk_size)


def _another(fault: Fault, at: ChunkPosition, random: Random) -> ChunkPosition:
    """The chunk whose value replaces the one ``at``."""
    positions = [ChunkPosition(blocks, index) for blocks in BLOCKS for index in range(blocks)]
    match fault:
        case Fault.SWAP_CHUNKS:
            positions = [position for position in positions if position.blocks == at.blocks]
        case Fault.SWAP_WINDOWS:
            positions = [position for position in positions if position.blocks != at.blocks]
    return random.choice([position for position in positions if position != at])


class Detector(StrEnum):
    """What detected a fault first.

    ``seal``: LMCache found the chunk and refused it. ``prefetch``: it did not find the chunk. ``canary``: the chunk
    was loaded, and a control proved the restored KV wrong. ``other_tier``: a sound copy was loaded.
    ``nothing_to_detect``: the stored value did not change. ``undetected``: the damaged value was loaded, and no
    control proved it wrong.
    """

    SEAL = "seal"
    PREFETCH = "prefetch"
    CANARY = "canary"
    OTHER_TIER = "other_tier"
    NOTHING_TO_DETECT = "nothing_to_detect"
    UNDETECTED = "undetected"


@dataclass(frozen=True, slots=True)
class Signs:
    """Evidence of one thaw: its answer, and the number of chunks that LMCache refused during it."""

    changed: bool
    verification: str
    blocks_found: int
    blocks_total: int
    tokens_restored: int
    tokens_recomputed: int
    refused: int
    tokens_by_tier: dict[Tier, int]


def detector(case: Case, signs: Signs) -> Detector:
    if signs.verification == "mismatch":
        return Detector.CANARY
    if not signs.changed:
        return Detector.NOTHING_TO_DETECT
    if signs.refused:
        return Detector.SEAL
    if signs.blocks_found < signs.blocks_total:
        return Detector.PREFETCH
    if signs.tokens_by_tier[case.other_tier]:
        return Detector.OTHER_TIER
    return Detector.UNDETECTED


def where(detector: Detector, case: Case) -> str:
    match detector:
        case Detector.SEAL | Detector.PREFETCH:
            return str(case.tier)
        case Detector.CANARY:
            return "engine"
        case Detector.OTHER_TIER:
            return str(case.other_tier)
        case _:
            return "-"


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """A case and its result; ``right``: the thawed session continued as the uninterrupted one."""

    case: Case
    signs: Signs
    right: bool

    @property
    def detector(self) -> Detector:
        return detector(self.case, self.signs)

    def row(self) -> tuple[Any, ...]:
        case, signs = self.case, self.signs
        return (
            case.fault.value,
            case.tier.value,
            case.other_tier.value if case.sound_copy else "-",
            str(case.at),
            str(case.other or "-"),
            signs.verification,
            signs.tokens_restored,
            signs.tokens_recomputed,
            self.detector.value,
            where(self.detector, case),
            "right" if self.right else "WRONG",
        )


def sections(outcomes: Sequence[CaseOutcome]) -> list[Section]:
    every = Section(
        "cases",
        (
            "case",
            "fault",
            "tier",
            "sound in",
            "chunk",
            "with",
            "verification",
            "restored",
            "recomputed",
            "detected at",
            "where",
            "continued",
        ),
        [(number, *outcome.row()) for number, outcome in enumerate(outcomes, 1)],
        "chunk and with: index / number of blocks of its window; restored and recomputed in tokens",
    )
    by_fault = {**_by_fault(outcomes), "all": _counted(outcomes)}
    table = Section("by fault", ("fault", *by_fault["all"]))
    table.rows.extend((fault, *counts.values()) for fault, counts in by_fault.items())
    return [every, table]


def summary(outcomes: Sequence[CaseOutcome]) -> dict[str, Any]:
    counts = _counted(outcomes)
    return {
        "cases": counts.pop("cases"),
        "wrong_served": counts.pop("wrong_served"),
        "detected_at": counts,
        "by_fault": _by_fault(outcomes),
    }


def _by_fault(outcomes: Sequence[CaseOutcome]) -> dict[str, dict[str, int]]:
    return {
        fault.value: _counted([outcome for outcome in outcomes if outcome.case.fault is fault])
        for fault in Fault
    }


def _counted(outcomes: Sequence[CaseOutcome]) -> dict[str, int]:
    outcomes_by_detector = Counter(outcome.detector for outcome in outcomes)
    return {
        "cases": len(outcomes),
        "wrong_served": sum(not outcome.right for outcome in outcomes),
        **{detector.value: outcomes_by_detector[detector] for detector in Detector},
    }
