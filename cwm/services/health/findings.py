"""What an examination found: one line each, with the way to put it right."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class FindingStatus(StrEnum):
    """``skipped`` could not be looked at, because something before it is at fault."""

    OK = "ok"
    WARN = "warn"
    FAULT = "fault"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    status: FindingStatus
    message: str
    fix: str = ""


@dataclass(slots=True)
class Findings:
    """Findings in the order in which they were made."""

    made: list[Finding] = field(default_factory=list)

    def ok(self, name: str, message: str) -> None:
        self.made.append(Finding(name, FindingStatus.OK, message))

    def warn(self, name: str, message: str, fix: str) -> None:
        self.made.append(Finding(name, FindingStatus.WARN, message, fix))

    def fault(self, name: str, message: str, fix: str) -> None:
        self.made.append(Finding(name, FindingStatus.FAULT, message, fix))

    def skipped(self, why: str, *names: str) -> None:
        self.made.extend(Finding(name, FindingStatus.SKIPPED, f"not checked: {why}") for name in names)

    def has_fault(self, name: str) -> bool:
        return any(f.name == name and f.status is FindingStatus.FAULT for f in self.made)
