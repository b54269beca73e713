"""How much of a tool's result reaches the agent that asked, and what may stand by reference in a call."""

from __future__ import annotations

from dataclasses import dataclass, field

from cwm.domain.tool_policy import ToolPolicies, ToolPolicy


@dataclass(frozen=True, slots=True)
class References:
    """What by-reference arguments of one call may come to. ``enabled`` false: of no tool, whatever its policy."""

    enabled: bool = True
    most: int = 16
    most_bytes: int = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Budgets:
    """Policies of tools, and what holds for all of them.

    ``enabled`` false: every result is delivered as it is. An agent's context is taken to hold
    ``window_tokens``; one result takes ``window_share`` of what is left of it at most. None: of no end.
    """

    policies: ToolPolicies = field(default_factory=ToolPolicies)
    enabled: bool = True
    references: References = field(default_factory=References)
    window_tokens: int | None = 200_000
    window_share: float = 0.25

    def allowance(self, policy: ToolPolicy, delivered: int) -> int | None:
        """Most tokens of one result for an agent that had ``delivered`` so far; None for any amount.

        It shrinks as the window fills, down to what a preview takes and no further.
        """
        if not self.enabled or policy.max_tokens is None:
            return None
        if self.window_tokens is None:
            return policy.max_tokens
        left = max(0, self.window_tokens - delivered)
        floor = min(policy.preview_tokens, policy.max_tokens)
        return max(floor, min(policy.max_tokens, int(left * self.window_share)))

    @property
    def some_take_references(self) -> bool:
        """Whether by-reference arguments are worth telling of."""
        policies = (self.policies.default, *self.policies.by_name.values())
        return self.references.enabled and any(policy.references for policy in policies)
