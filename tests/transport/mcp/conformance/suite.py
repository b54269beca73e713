"""Runs the official conformance suite and reads what it found."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.node.programs import Programs

_HERE: Final = Path(__file__).parent
_RESULTS: Final = re.compile(r"server-(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z")
_LISTED: Final = re.compile(r"^ +- (\S+) \[", re.MULTILINE)
_SECONDS: Final = 240
_SHORT: Final = frozenset({"FAILURE", "WARNING"})

Check = dict[str, Any]
"""``id``, ``status`` (SUCCESS, FAILURE, WARNING, SKIPPED, INFO) and, of a failure, ``errorMessage``."""


@dataclass(frozen=True, slots=True)
class Findings:
    """The checks of every scenario that a revision of the protocol has, scored or not, by scenario."""

    revision: str
    scenarios: dict[str, list[Check]]
    output: str

    @property
    def failing(self) -> set[str]:
        """Scenarios with a failure in them (of a MUST) or a warning (of a SHOULD), or without any result."""
        return {name for name, checks in self.scenarios.items() if not checks or _fallen_short(checks)}

    @property
    def told(self) -> str:
        """Counts, then every check that did not simply succeed."""
        statuses = Counter(check["status"] for checks in self.scenarios.values() for check in checks)
        passing = len(self.scenarios) - len(self.failing)
        counts = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
        lines = [f"{self.revision}: {passing} of {len(self.scenarios)} scenarios pass; checks: {counts}"]
        for name, checks in self.scenarios.items():
            lines += [] if checks else [f"{name}: no result, see the end of this:\n{self.output}"]
            lines += [
                f"{name}: {check['status']} {check['id']}: {check.get('errorMessage', '')}"
                for check in checks
                if check["status"] in {"SKIPPED", *_SHORT}
            ]
        return "\n".join(lines)


async def run_suite(programs: Programs, url: str, revision: str, folder: Path) -> Findings:
    """Every server scenario of ``revision`` against the server at ``url``; ``folder`` keeps the results."""
    required = _required(programs, revision)
    which = ("--requirements", revision) if required else ("--suite", "all", "--spec-version", revision)
    line = programs.line("conformance", "server", "--url", url, "-o", str(folder), *which)
    ended = await programs.run(line, seconds=_SECONDS)
    expected = required or await _listed(programs, revision)
    none: dict[str, list[Check]] = {name: [] for name in expected}
    return Findings(revision, none | _checks(folder), ended.told)


def not_applicable(revision: str) -> dict[str, str]:
    """Scenarios that CWM does not pass, each with the reason."""
    listed = yaml.safe_load((_HERE / "not_applicable.yaml").read_text())
    reasons = {
        scenario: group["reason"].strip()
        for group in listed
        for scenario in group["scenarios"]
        if revision in group["revisions"]
    }
    assert all(reasons.values())
    return reasons


def _required(programs: Programs, revision: str) -> list[str]:
    """What the suite froze for a revision, also what it does not score; it froze nothing for the older ones."""
    package = programs.folder / "node_modules" / "@modelcontextprotocol" / "conformance"
    frozen = package / "requirements" / f"{revision}.yaml"
    if not frozen.exists():
        return []
    required = yaml.safe_load(frozen.read_text())
    others = [each["scenario"] for each in required["not_scored"] if each["leg"] == "server"]
    return [*required["server"], *others]


async def _listed(programs: Programs, revision: str) -> list[str]:
    ended = await programs.run(programs.line("conformance", "list", "--server", "--spec-version", revision))
    names = _LISTED.findall(ended.out)
    assert names, ended.told
    return names


def _checks(folder: Path) -> dict[str, list[Check]]:
    """By scenario; the suite makes a folder for each, named with the time as well."""
    found = {}
    for results in folder.glob("*/checks.json"):
        named = _RESULTS.fullmatch(results.parent.name)
        assert named is not None, results
        found[named["scenario"]] = json.loads(results.read_text())
    return found


def _fallen_short(checks: list[Check]) -> bool:
    return any(check["status"] in _SHORT for check in checks)
