"""Habits of clients, by the two messages at which a request left what was recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cwm.domain.clients.habit import Habit
from cwm.domain.divergence import Cause
from cwm.domain.habits import Repair, RepairPolicies, habit, switch_against, without_billing_block

Content = dict[str, Any]


def system(text: Any) -> Content:
    return {"role": "system", "content": text}


def user(*texts: str) -> Content:
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


def git(status: str) -> str:
    return (
        "You are an agent.\n\ngitStatus: This is the git status at the start of the conversation. It does not update.\n"
        f"Current branch: main\n\nStatus:\n{status}\n\nRecent commits:\n1a2b3c4 Begin"
    )


def claude_date(day: str) -> Content:
    return user(f"<system-reminder>\n# currentDate\nToday's date is {day}.\n</system-reminder>\n", "hi")


def opencode(day: str) -> Content:
    return system(f"You are opencode.\n<env>\n  Platform: linux\n  Today's date: {day}\n</env>\nBe terse.")


def qwen(day: str) -> Content:
    return user(f"This is the Qwen Code.\nToday's date is {day} (formatted according to the user's locale).")


def codex(day: str) -> Content:
    return user(f"<environment_context>\n  <current_date>{day}</current_date>\n</environment_context>")


def billing(digest: str, joint: str = "\n") -> Content:
    return system(
        f"x-anthropic-billing-header: cc_version=2.1.197.{digest}; cc_entrypoint=sdk-cli;{joint}You are an agent."
    )


def block(digest: str) -> Content:
    texts = billing(digest)["content"].split("\n")
    return system([{"type": "text", "text": text} for text in texts])


REMINDER = "<system-reminder>\nThe todo list is empty.\n</system-reminder>"


@pytest.mark.parametrize(
    ("of", "one", "other", "name"),
    [
        (billing, "0df", "023", Habit.BILLING_BLOCK),
        (block, "0df", "023", Habit.BILLING_BLOCK),
        (lambda digest: billing(digest, ""), "0df", "023", Habit.BILLING_BLOCK),
        (claude_date, "2026-11-25", "2026-11-26", Habit.DATE),
        (opencode, "Wed Nov 25 2026", "Thu Nov 26 2026", Habit.DATE),
        (opencode, "Wed Nov 25 2026", "Wed Dec 2 2026", Habit.DATE),
        (opencode, "Mon Nov 2 2026", "Mon Nov 23 2026", Habit.DATE),
        (qwen, "Wednesday, November 25, 2026", "Thursday, November 26, 2026", Habit.DATE),
        (codex, "2026-11-25", "2026-11-26", Habit.DATE),
        (lambda status: system(git(status)), "(clean)", " M a.py", Habit.GIT_STATUS),
        (lambda status: user(f"<system-reminder>\n{git(status)}"), "(clean)", "?? b", Habit.GIT_STATUS),
        (lambda left: user("Go on.", *left), (REMINDER,), (), Habit.MOVED_REMINDER),
        (lambda left: user("Go on.", *left), (), (REMINDER,), Habit.MOVED_REMINDER),
        (
            lambda left: user("Go on.", REMINDER.replace("empty", left)),
            "empty",
            "full",
            Habit.MOVED_REMINDER,
        ),
    ],
)
def test_a_habit_is_named_by_what_changed_first(
    of: Callable[[Any], Content], one: Any, other: Any, name: Habit
) -> None:
    assert habit(Cause.EDITED, of(one), of(other)) is name
    assert habit(Cause.UNRELATED, of(other), of(one)) is name


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (user("We meet on 2026-11-25."), user("We meet on 2026-11-26.")),
        (user("The update: 2026-11-25."), user("The update: 2026-11-26.")),
        (opencode("Wed Nov 25 2026"), system("You are another agent.")),
        (system("Version 2025-11-25."), system("Version two.")),
        (system(git("(clean)")), system("You are kind.")),
        (user(REMINDER, "Go on."), user(REMINDER, "Stop.")),
        (user("hi"), user("hi")),
        (user("<system-reminder>"), None),
        ({}, user("hi")),
    ],
)
def test_what_somebody_said_is_no_habit_nor_what_is_not_kept(old: Content, new: Content | None) -> None:
    assert habit(Cause.EDITED, old, new) is None


def test_the_order_of_tools_needs_no_text() -> None:
    assert habit("tool_order", None, None) is Habit.REORDERED_TOOLS


@pytest.mark.parametrize(
    ("moved", "name"),
    [
        (user(REMINDER), Habit.MOVED_REMINDER),
        (user("I have *added these files to the chat* so you can go ahead."), Habit.MOVED_REMINDER),
        (system("# *SEARCH/REPLACE block* Rules:\n"), Habit.MOVED_REMINDER),
        (user("Which door?"), None),
        (None, None),
    ],
)
def test_a_message_that_moved_is_a_reminder_by_its_words(moved: Content | None, name: Habit | None) -> None:
    assert habit("moved", moved, user("On.")) is name


def test_messages_that_are_not_each_other_s_are_not_compared() -> None:
    assert habit(Cause.INSERTED, claude_date("2026-11-25"), claude_date("2026-11-26")) is None


def test_a_switch_is_the_client_s_own() -> None:
    claude_code = "claude-cli/2.1.197 (external, sdk-cli)"
    assert switch_against(Habit.GIT_STATUS, claude_code) == "CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS=1"
    assert switch_against(Habit.GIT_STATUS, "opencode/1.18.33") is None
    assert switch_against(Habit.BILLING_BLOCK, "litellm/1.110.2") == "CLAUDE_CODE_ATTRIBUTION_HEADER=0"
    assert switch_against(Habit.DATE, claude_code) is None


@pytest.mark.parametrize("joint", ["\n", "", " "])
def test_only_the_block_itself_is_left_out(joint: str) -> None:
    assert without_billing_block(billing("0df", joint)["content"]) == "You are an agent."
    quoted = "It says 'x-anthropic-billing-header: a=b;'."
    assert without_billing_block(quoted) == quoted


def test_repairs_are_those_of_every_pattern_that_matches_and_a_tenant_has_its_own() -> None:
    both = (Repair.BILLING_BLOCK, Repair.TOOL_ORDER)
    policies = RepairPolicies(
        {"claude-cli*": (Repair.BILLING_BLOCK,), "*": (Repair.TOOL_ORDER,)}, {"acme": {"codex*": both}}
    )
    assert policies.of("other", "claude-cli/2.1") == {*both}
    assert policies.of("other", "") == {Repair.TOOL_ORDER}
    assert policies.of("acme", "codex_exec/0.169.0") == {*both}
    assert policies.of("acme", "claude-cli/2.1") == RepairPolicies().of("other", "claude-cli") == frozenset()
