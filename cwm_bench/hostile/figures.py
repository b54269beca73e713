"""What each operation cost the other tenant, as a table and a summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cwm_bench.harness.figures import Section, median

MOST_TIMES: Final = 2.0
"""As long as the other tenant may wait at most, compared with its turns alone."""
MOST_MB: Final = 1024
"""The memory limit of the image in deploy/compose and deploy/helm."""
_COLUMNS: Final = ("operation", "request", "bytes", "cpu ms", "answers", "wait", "longest ms", "peak MB")


@dataclass(frozen=True, slots=True)
class Waits:
    """Turns of the other tenant in a row, in ms; ``lost`` were not answered."""

    milliseconds: Sequence[float]
    lost: int = 0

    @property
    def mean(self) -> float:
        return sum(self.milliseconds) / max(1, len(self.milliseconds))


@dataclass(frozen=True, slots=True)
class Attack:
    """The worst request of an operation: its size, the processor time of one in ms, how it was answered, and what it did to the others."""

    operation: str
    request: str
    size: int
    cpu_ms: float
    answers: Mapping[str, int]
    waits: Waits
    peak_mb: float


def section(attacks: Sequence[Attack], alone: float) -> Section:
    rows: list[Sequence[Any]] = [
        (
            attack.operation,
            attack.request,
            attack.size,
            round(attack.cpu_ms, 1),
            ", ".join(f"{count} x {status}" for status, count in sorted(attack.answers.items())),
            round(attack.waits.mean / alone, 2),
            round(max(attack.waits.milliseconds, default=0.0)),
            attack.peak_mb,
        )
        for attack in sorted(attacks, key=lambda attack: -attack.waits.mean)
    ]
    note = (
        f"the request of each operation that cost the gateway most, over and over on four connections, beside turns of another tenant one after the other; "
        f"wait: their mean duration compared with {alone:.0f} ms alone; cpu: processor time of the gateway for one request; goals: at most "
        f"{MOST_TIMES:g} times as long, at most {MOST_MB} MB"
    )
    return Section("hostile requests", _COLUMNS, rows, note)


def summary(attacks: Sequence[Attack], alone: float, unrecorded: int) -> dict[str, Any]:
    """``lost``: turns of the other tenant that were not answered, or answered and not recorded."""
    waits, memory = [attack.waits.mean / alone for attack in attacks], [attack.peak_mb for attack in attacks]
    return {
        "routes": len({attack.operation for attack in attacks}),
        "worst_wait_ratio": round(max(waits), 2),
        "median_wait_ratio": median(waits),
        "worst_memory_mb": max(memory),
        "over_goal": sum(wait > MOST_TIMES for wait in waits) + sum(mb > MOST_MB for mb in memory),
        "lost": sum(attack.waits.lost for attack in attacks) + unrecorded,
    }
