"""Verdicts on restored KV, and what they rest on, as tools answer them."""

from __future__ import annotations

from cwm.domain.verdict import Evidence
from cwm.transport.mcp.contract.schemas import proof as schemas


def compared(evidence: Evidence) -> schemas.Compared:
    distance, control = evidence.distance, evidence.control
    looked = distance.places > 0
    answer: schemas.Compared = {
        "tokens_compared": distance.places,
        "places_differing": distance.differing,
        "first_difference": distance.first,
        "deviation": distance.largest if looked else None,
        "mean_deviation": distance.mean if looked else None,
        "noise": None if evidence.limits is None else round(evidence.limits.largest, 4),
        "compared_with": evidence.compared_with,
        "canary_origin": None if evidence.origin is None else evidence.origin.value,
    }
    if control is not None:
        answer["control"] = {
            "restored_from_computed": control.restored.largest,
            "canary_from_computed": control.canary.largest,
            "same_kv": control.itself.largest,
        }
    return answer
