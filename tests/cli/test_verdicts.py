"""What ``cwm windows thaw`` and ``cwm engines move`` say of a verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from cwm.cli.terminal.verdicts import basis
from cwm.domain.canary import Origin
from cwm.domain.look import Distance
from cwm.domain.noise import NoiseLimits
from cwm.domain.verdict import ControlEvidence, Evidence, Verification, skipped
from cwm.transport.mcp.contract.render.proof import compared

EXACT: Final = Evidence(Verification.EXACT, Distance(8), origin=Origin.COMPUTED)


def told(evidence: Evidence, **more: Any) -> str:
    return basis({**compared(evidence), "reason": evidence.reason, **more})


def test_an_exact_verdict_says_what_was_compared_and_how_long_it_took() -> None:
    assert told(EXACT, verify_ms=64.8) == (
        " (8 places compared with a canary on computed KV: 0 differ, by 0 nats at most; 65 ms)"
    )


def test_a_verdict_of_a_control_says_so_and_how_large_the_noise_is() -> None:
    apart = Distance(8, 8, 1.2345, 0.9, 97)
    control = ControlEvidence(apart, Distance(8), Distance(8))
    evidence = Evidence(Verification.MISMATCH, apart, NoiseLimits(0.25, 0.1), Origin.INHERITED, control)
    assert told(evidence) == (
        " (8 places compared with a canary on inherited KV and the context computed afresh: "
        "8 differ, by 1.23 nats at most; noise here is up to 0.25)"
    )


def test_what_was_not_compared_says_why() -> None:
    assert told(skipped("switched off"), verify_ms=0.0) == " (switched off)"
    assert told(skipped("")) == ""
    assert "; nothing proves it" in told(replace(EXACT, reason="nothing proves it"))
