"""How much of a tool result is delivered to the agent, and how much a call may pull in by reference."""

from __future__ import annotations

from dataclasses import dataclass, field

from cwm.domain.tool_policy import ToolPolicies, ToolPolicy


@dataclass(frozen=True, slots=True)
class References:
    """Limits on by-reference arguments of one call.

    ``enabled`` false turns them off for every tool, whatever its policy; ``most`` counts references.
    """

    enabled: bool = True
    most: int = 16
    most_bytes: int = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Budgets:
    """The tools' policies, and the limits that apply to all of them.

    With ``enabled`` false, every result is delivered whole. An agent's context is assumed to hold ``window_tokens``
    (None: unlimited); one result takes at most ``window_share`` of what remains of it.
    """

    policies: ToolPolicies = field(default_factory=ToolPolicies)
    enabled: bool = True
    references: References = field(default_factory=References)
    window_tokens: int | None = 200_000
    window_share: float = 0.25

    def allowance(self, policy: ToolPolicy, delivered: int) -> int | None:
        """Most tokens that one result may take for an agent that received ``delivered`` so far; None for no limit.

        The allowance shrinks as the window fills, but never below the size of a preview.
        """
        if not self.enabled or policy.max_tokens is None:
            return None
        if self.window_tokens is None:
            return policy.max_tokens
        remaining_tokens = max(0, self.window_tokens - delivered)
        floor = min(policy.preview_tokens, policy.max_tokens)
        return max(floor, min(policy.max_tokens, int(remaining_tokens * self.window_share)))

    @property
    def some_take_references(self) -> bool:
        """Whether any tool accepts by-reference arguments, so that agents should be told about them."""
        policies = (self.policies.default, *self.policies.by_name.values())
        return self.references.enabled and any(policy.references for policy in policies)
