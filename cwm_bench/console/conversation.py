"""One long conversation with an agent, recorded through the registry as the gateway records it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cwm.domain.messages import message_of
from cwm.domain.prefix import TokenIds, digest
from cwm.domain.principal import TENANT as EVERYBODY
from cwm.domain.session import Session, SessionState
from cwm.domain.turn import Turn, TurnParts, TurnTag
from cwm.ports.registry import Registry
from cwm_bench.scale.rows import ASKER, TENANT

SESSION: Final = "agent-at-work"
LAST_WORDS: Final = "the walrus signs the last page"

_SYSTEM_TOKENS: Final = 9_000
_TURN_TOKENS: Final = 380
_ANSWER_TOKENS: Final = 120
_BRANCH_EVERY: Final = 40
_TAG_EVERY: Final = 60
_FILE_LINES: Final = 60


@dataclass(frozen=True, slots=True)
class Conversation:
    """Ids of turns: the newest, and one in the middle."""

    last: str
    middle: str


async def record(registry: Registry, turn_count: int) -> Conversation:
    """``turn_count`` turns of tool calls and their results, of which every fortieth is retried; some have tags."""
    began = datetime.now(UTC) - timedelta(seconds=30 * turn_count)
    session = Session(
        tenant=TENANT, id=SESSION, owner=ASKER, model="qwen3-32b", state=SessionState.ACTIVE,
        salt_scope=f"tenant:{TENANT}", token_count=0, revision=0, created_at=began, updated_at=began, circle=EVERYBODY,
    )  # fmt: skip
    await registry.add_session(session, ())
    ids: TokenIds = ()
    parent: Turn | None = None
    message_count, turns = 0, list[Turn]()
    for number in range(1, turn_count + 1):
        is_retry = parent is not None and number % _BRANCH_EVERY == 0
        at = began + timedelta(seconds=30 * number)
        messages = _said(number, turn_count)
        size = _TURN_TOKENS if parent else _SYSTEM_TOKENS
        new_ids = tuple(range(number * 16_384, number * 16_384 + size))
        context = ids + new_ids
        turn = Turn(
            TENANT, SESSION, f"turn_{number:032x}", ASKER, at, client="claude-cli/2.1.197 (external, cli)"
        )
        pending = await registry.begin_turn(turn, session.created_at)
        assert pending is not None
        ended = replace(
            pending,
            parent=None if parent is None else parent.id,
            parent_at=len(ids),
            parent_messages=message_count,
            prompt_tokens=len(context) - _ANSWER_TOKENS,
            total_tokens=len(context),
            prompt_digest=digest(context[:-_ANSWER_TOKENS]),
            digest=digest(context),
            continues=parent is not None,
            main=not is_retry,
            cached_tokens=len(ids),
            first_token_ms=150,
            ended_at=at + timedelta(seconds=8),
        )
        await registry.end_turn(ended, TurnParts(new_ids, tuple(message_of(each) for each in messages)))
        turns.append(ended)
        if number % _TAG_EVERY == 0:
            await registry.tag(
                TurnTag(TENANT, f"step-{number}", SESSION, ended.id, ASKER, at, automatic=False)
            )
        if not is_retry:
            ids, parent, message_count = context, ended, message_count + len(messages)
    return Conversation(turns[-1].id, turns[turn_count // 2].id)


def _said(number: int, turn_count: int) -> list[Mapping[str, Any]]:
    """A result of a tool and an answer that calls the next; the first turn has the agent's long system text."""
    path = f"src/part_{number % 97}/module_{number}.py"
    answer = {
        "role": "assistant",
        "content": LAST_WORDS if number == turn_count else f"Step {number}: I read {path} next.\n\n```python\nassert step == {number}\n```",
        "reasoning_content": f"Part {number} depends on part {number - 1}: look at how its rows are made. " * 4,
        "tool_calls": [
            {"id": f"call_{number}", "type": "function", "function": {"name": "Read", "arguments": f'{{"path": "{path}"}}'}}
        ],
    }  # fmt: skip
    if number == 1:
        rules = {"role": "system", "content": "You are a careful coding agent. Work in small steps. " * 300}
        return [
            rules,
            {"role": "user", "content": "Go through every module and write down what it does."},
            answer,
        ]
    lines = "\n".join(f"def step_{number}_{line}(rows): return rows[{line}:]" for line in range(_FILE_LINES))
    return [{"role": "tool", "tool_call_id": f"call_{number - 1}", "content": lines}, answer]
