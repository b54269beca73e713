"""Types of the fixtures that tests of the local stack share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from cwm.stack.plan import StackPlan

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]
PlanFor = Callable[..., StackPlan]
