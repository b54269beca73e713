"""Habits of clients that break the cache, by name."""

from __future__ import annotations

from enum import StrEnum


class Habit(StrEnum):
    """What clients are known to change in each request, or at each start, although nobody said anything else."""

    BILLING_BLOCK = "billing_block"
    DATE = "date"
    GIT_STATUS = "git_status"
    MOVED_REMINDER = "moved_reminder"
    REORDERED_TOOLS = "reordered_tools"
