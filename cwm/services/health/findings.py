"""The findings of an examination: one line each, with a fix."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class FindingStatus(StrEnum):
    """``skipped``: not checked, because an earlier check failed or something it needs is missing."""

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
    """Findings in the order of the checks."""

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
