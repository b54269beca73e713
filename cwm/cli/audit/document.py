"""Renders audit records and verdicts as JSON documents and sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cwm.domain.audit_chain import AuditRecord
    from cwm.domain.audit_check import Finding, Verdict

_SENTENCES: Final = {
    "changed": "is not as it was written",
    "removed": "is missing",
    "unlinked": "does not follow the record that it was written after",
    "repeated": "occurs again",
    "cut_off": "is missing at the end, or differs from the checkpoint",
    "unknown_key": "was signed with a secret that was not given (CWM_PREVIOUS_SECRET, --old-secret-file)",
    "unsigned": "is an anchor or a checkpoint that no gateway signed, or is older than the chain and nobody signed it",
}


def document_of(record: AuditRecord) -> dict[str, Any]:
    """The record as a JSON object. ``timestamp`` is RFC 3339 in UTC; ``previous`` and ``digest`` are hex."""
    event, origin = record.event, record.event.origin
    return {
        "tenant": event.tenant,
        "seq": record.seq,
        "timestamp": event.timestamp.isoformat().replace("+00:00", "Z"),
        "subject": event.subject,
        "event": event.event,
        "outcome": event.outcome,
        "severity": event.severity.value,
        "session_id": event.session_id,
        "window_name": event.window_name,
        "face": origin.face.value,
        "address": origin.address,
        "user_agent": origin.user_agent,
        "details": event.details,
        "previous": record.previous,
        "key_id": record.key_id,
        "digest": record.digest,
    }


def verdict_of(verdict: Verdict) -> dict[str, Any]:
    return {
        "tenant": verdict.tenant,
        "whole": verdict.whole,
        "records": verdict.records,
        "carried": verdict.carried,
        "pruned": verdict.pruned,
        "checkpoint": {"seq": verdict.end.seq, "digest": verdict.end.digest},
        "findings": [
            {"damage": finding.damage.value, "first": finding.first, "last": finding.last}
            for finding in verdict.findings
        ],
        "more_findings": verdict.more_findings,
    }


def signed_of(result: str, verdict: Verdict) -> str:
    """What :func:`sign` did, as a sentence."""
    unsigned = verdict.unsigned_carried
    if unsigned is None:
        return f"{verdict.tenant}: nothing to sign."
    records = f"the records {unsigned.first} to {unsigned.last}, which are older than the chain"
    if result == "signed":
        return f"{verdict.tenant}: signed {records}."
    return f"{verdict.tenant}: DAMAGED, nothing is signed of {records} (cwm audit verify)."


def finding_of(finding: Finding) -> str:
    which = (
        f"record {finding.first}"
        if finding.first == finding.last
        else f"each of the records {finding.first} to {finding.last}"
    )
    return f"{finding.damage.value}: {which} {_SENTENCES[finding.damage.value]}"
