"""What ``cwm doctor`` finds, with what to do about it."""

from __future__ import annotations

from cwm.domain.access import AccessScope
from cwm.services.health.findings import FindingStatus
from cwm.transport.console.access import form
from cwm.transport.console.pages import Page
from cwm.transport.console.views import Asked

_ORDER = (FindingStatus.FAULT, FindingStatus.WARN, FindingStatus.OK, FindingStatus.SKIPPED)


async def doctor(asked: Asked) -> Page:
    """It examines for the form on its own page only: an examination takes seconds and asks the engine for a few tokens."""
    asked.principal.require(frozenset({AccessScope.ADMIN}))
    if is_asked := asked.request.method == "POST":
        form.check(asked.request, await form.read(asked.request))
    examine = asked.services.examine
    examination = await examine(asked.principal) if is_asked else examine.last(asked.principal)
    findings = examination.findings if examination else ()
    return Page(
        "doctor.html",
        {
            "examination": examination,
            "findings": sorted(findings, key=lambda each: _ORDER.index(each.status)),
            "faults": sum(each.status is FindingStatus.FAULT for each in findings),
            "warnings": sum(each.status is FindingStatus.WARN for each in findings),
        },
    )
