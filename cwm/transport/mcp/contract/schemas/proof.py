"""Shapes of verdicts on restored KV, and of what they rest on."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

Verdict: TypeAlias = Literal["exact", "within_noise", "mismatch", "canary_stale", "undecided", "skipped"]


class ControlEvidence(TypedDict):
    """Largest changes of a log-probability, in nats."""

    restored_from_computed: float
    canary_from_computed: float
    same_kv: Annotated[float, Field(description="Between two looks at the same KV")]


class Compared(TypedDict):
    tokens_compared: Annotated[int, Field(description="Places looked at, one token each")]
    places_differing: int
    first_difference: Annotated[
        int | None, Field(description="Tokens of the context before the first place that differed")
    ]
    deviation: Annotated[
        float | None,
        Field(description="Largest change of a log-probability, in nats; null if nothing was compared"),
    ]
    mean_deviation: Annotated[float | None, Field(description="Mean of the places' largest changes, in nats")]
    noise: Annotated[
        float | None,
        Field(
            description="Change that two looks at the same KV stay within on this engine, in nats; null if it was not needed"
        ),
    ]
    compared_with: Literal["nothing", "canary", "canary_and_control"]
    canary_origin: Annotated[
        Literal["computed", "inherited", "unproven"] | None,
        Field(
            description="The KV that the canary was recorded on: computed, loaded with a good verdict, or neither"
        ),
    ]
    control: NotRequired[ControlEvidence]


class VerificationEvidence(Compared):
    reason: Annotated[str, Field(description="Why nothing is verified, or why it is not certain; else empty")]
    verify_ms: Annotated[float, Field(description="Duration of looks and control")]
